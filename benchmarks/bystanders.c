/* Other processes of a node: `bystanders N` starts N that sleep, each with a command line of its own, and says `ready`.
 *
 * They end with the one that started them, which ends with its standard input. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static void bystander(char *title, size_t room, int number) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    memset(title, 0, room);
    snprintf(title, room, "worker-%d", number);
    for (;;) pause();
}

int main(int count, char **words) {
    int wanted = count > 1 ? atoi(words[1]) : 0;
    size_t room = words[count - 1] + strlen(words[count - 1]) - words[0];
    for (int number = 0; number < wanted; number++) {
        pid_t child = fork();
        if (child < 0) return 1;
        if (child == 0) bystander(words[0], room, number);
    }
    puts("ready");
    fflush(stdout);
    char rest[256];
    while (read(0, rest, sizeof rest) > 0) {}
    return 0;
}
