/* A server in few bytes, of which hundreds run at once: `python -m sglang.launch_server --port N --tp-size M`.
 *
 * It says on standard error that it is ready, answers health probes on its port where it has one, and has M ranks whose
 * titles are those of SGLang's schedulers. All its processes end with the launcher. */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

static void rank(int number) {
    char title[64], *words[] = {title, NULL};
    snprintf(title, sizeof title, "sglang::scheduler_TP%d", number);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execv("/proc/self/exe", words);
    _exit(1);
}

static int listening(int port) {
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int handle = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    setsockopt(handle, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(handle, (struct sockaddr *)&place, sizeof place) || listen(handle, 64)) exit(1);
    return handle;
}

static void answer(int client) {
    char request[4096] = "";
    const char *good = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
    const char *none = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    if (read(client, request, sizeof request - 1) > 0) {
        const char *text = strncmp(request, "GET /health ", 12) ? none : good;
        if (write(client, text, strlen(text)) < 0) return;
    }
}

int main(int count, char **words) {
    int port = 0, ranks = 0;
    if (!strncmp(words[0], "sglang::", 8)) {
        prctl(PR_SET_NAME, words[0]);
        for (;;) pause();
    }
    for (int at = 1; at + 1 < count; at++) {
        if (!strcmp(words[at], "--port")) port = atoi(words[at + 1]);
        if (!strcmp(words[at], "--tp-size")) ranks = atoi(words[at + 1]);
    }
    signal(SIGPIPE, SIG_IGN);
    int handle = port ? listening(port) : -1;
    for (int number = 0; number < ranks; number++)
        if (fork() == 0) rank(number);
    fprintf(stderr, "[2026-01-01 00:00:00] The server is fired up and ready to roll!\n");
    puts("ready");
    fflush(stdout);
    for (;;) {
        int client = handle < 0 ? (pause(), -1) : accept4(handle, NULL, NULL, SOCK_CLOEXEC);
        if (client >= 0) {
            answer(client);
            close(client);
        }
    }
}
