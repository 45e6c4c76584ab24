/* A libnvidia-ml.so.1 for machines without GPUs:
 *   gcc -O2 -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o DIR/libnvidia-ml.so.1 fake_nvml.c
 * and LD_LIBRARY_PATH=DIR for the process that loads it.
 *
 * It plays what the file named by STALLWATCH_FAKE_NVML says, which it reads at each call. The statements are those of
 * exporter/stallwatch/simulation/nvml.py (its docstring lists them), and it also knows `gpu 0 mig 1`.
 * Names of calls stand without _v2, _v3; statements must be under 512 characters, the file under 64 KiB.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PERIOD_US 139000LL
#define RING 72
#define GPUS 64

enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 6, INSUFFICIENT_SIZE, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };

typedef unsigned long long u64;
typedef union { double d; unsigned int u; u64 ull; } value_t;
typedef struct { u64 stamp; value_t value; } sample_t;
typedef struct { u64 total, free, used; } memory_t;
typedef struct { unsigned int version; u64 total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned int pid; u64 memory; unsigned int gpu_instance, compute_instance; } process_t;
typedef struct { unsigned int gpu, memory; } rates_t;
typedef struct { unsigned int version, sensor; int temperature; } temperature_t;
typedef struct { char legacy[16]; unsigned int domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
typedef struct { uint32_t id, scope; int64_t stamp, latency; uint32_t type, result; value_t value; } field_t;

static char text[1 << 16];
static int running, starts;
static double energy[GPUS], energy_at[GPUS];

static double monotonic(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static int load(void)
{
    const char *path = getenv("STALLWATCH_FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file)
        return 0;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return 1;
}

/* Copies what follows `key` on the next line of this GPU (-1: of no GPU) and returns where to go on, or NULL. */
static const char *next(const char *from, int gpu, const char *key, char rest[512])
{
    size_t length = strlen(key);
    while (*from) {
        char line[512] = "", which[16], *words = line;
        size_t size = strcspn(from, "\n"), kept = strcspn(from, "#\n");
        memcpy(line, from, kept < sizeof line ? kept : sizeof line - 1);
        from += size + (from[size] == '\n');
        for (char *end = line + strlen(line); end > line && strchr(" \t\r", end[-1]);)
            *--end = 0;
        words += strspn(words, " \t");
        if (gpu >= 0) {
            int used = 0;
            if (sscanf(words, "gpu %15s %n", which, &used) < 1 || !used)
                continue;
            if (strcmp(which, "*") && (which[0] < '0' || which[0] > '9' || atoi(which) != gpu))
                continue;
            words += used;
        }
        if (strncmp(words, key, length) || (words[length] && words[length] != ' '))
            continue;
        strcpy(rest, words + length + strspn(words + length, " "));
        return from;
    }
    return NULL;
}

static int last(int gpu, const char *key, char rest[512])
{
    int found = 0;
    for (const char *at = text; (at = next(at, gpu, key, rest));)
        found = 1;
    return found;
}

static double number(int gpu, const char *key, double fallback)
{
    char rest[512];
    return last(gpu, key, rest) ? strtod(rest, NULL) : fallback;
}

static double for_call(int gpu, const char *key, const char *call)
{
    char rest[512], name[128];
    double found = 0, value;
    for (int place = -1; place <= gpu; place += gpu < 0 ? 1 : gpu + 1)
        for (const char *at = text; (at = next(at, place, key, rest));)
            if (sscanf(rest, "%127s %lf", name, &value) == 2 && (!strcmp(name, "*") || !strcmp(name, call)))
                found = value;
    return found;
}

static int listed(int order[GPUS])
{
    char rest[512], *at = rest, *end;
    int count = 0;
    if (last(-1, "order", rest))
        for (long gpu; count < GPUS && (gpu = strtol(at, &end, 10), end != at); at = end)
            order[count++] = (int)gpu;
    if (!count)
        for (int gpus = (int)number(-1, "gpus", 1); count < gpus && count < GPUS; count++)
            order[count] = count;
    return count;
}

static int is_lost(int gpu)
{
    char rest[512];
    int order[GPUS], count = listed(order), here = 0;
    for (int i = 0; i < count; i++)
        here |= order[i] == gpu;
    return !here || (last(gpu, "lost", rest) && strcmp(rest, "0"));
}

static int enter(const char *call, int gpu)
{
    if (!load())
        return DRIVER_NOT_LOADED;
    double delay = for_call(gpu, "delay", call);
    struct timespec pause = {(time_t)delay, (long)((delay - (time_t)delay) * 1e9)};
    if (delay > 0)
        nanosleep(&pause, NULL);
    int code = (int)for_call(gpu, "error", call);
    if (code)
        return code;
    if (!running && strcmp(call, "nvmlInit"))
        return UNINITIALIZED;
    return gpu >= 0 && is_lost(gpu) ? GPU_IS_LOST : SUCCESS;
}

#define ENTER(call) do { int code = enter(call, -1); if (code) return code; } while (0)
/* A handle is the number of the GPU and of the start of the library that gave it, and is invalid after the next start. */
#define GPU(call) \
    int gpu = (int)((uintptr_t)device & 0xffff) - 1; \
    do { \
        int code = enter(call, gpu); \
        if (code) return code; \
        if (gpu < 0 || (int)((uintptr_t)device >> 16) != starts) return INVALID_ARGUMENT; \
    } while (0)

static void *handle_of(int gpu) { return (void *)(((uintptr_t)starts << 16) + gpu + 1); }
static void uuid_of(int gpu, char *uuid, unsigned int size) { snprintf(uuid, size, "GPU-00000000-0000-0000-0000-%012x", gpu); }
static void bus_id_of(int gpu, char *bus_id, unsigned int size) { snprintf(bus_id, size, "00000000:%02X:00.0", gpu + 16); }
static long long newest(void) { return (long long)((monotonic() + number(-1, "driver_clock", 5000)) * 1e6 + 0.5) / PERIOD_US; }

/* The percentage of one sample: what each burst covers of it, over the level. */
static unsigned int sample(int gpu, long long n)
{
    double level = number(gpu, "utilization", 0), value = level, length = PERIOD_US / 1e6, start, seconds, percent;
    double end = n * length - number(-1, "driver_clock", 5000);
    char rest[512];
    for (const char *at = text; (at = next(at, gpu, "burst", rest));) {
        if (sscanf(rest, "%lf %lf %lf", &start, &seconds, &percent) != 3)
            continue;
        double until = end < start + seconds ? end : start + seconds, from = end - length > start ? end - length : start;
        if (until > from)
            value += (until - from) / length * (percent - level);
    }
    return (unsigned int)(value + 0.5);
}

int nvmlInitWithFlags(unsigned int flags) { (void)flags; ENTER("nvmlInit"); starts += !running++; return SUCCESS; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { ENTER("nvmlShutdown"); running--; return SUCCESS; }

const char *nvmlErrorString(int code)
{
    static char message[64];
    snprintf(message, sizeof message, "simulated NVML error %d", code);
    return message;
}

int nvmlSystemGetDriverVersion(char *version, unsigned int size)
{
    char rest[512];
    ENTER("nvmlSystemGetDriverVersion");
    snprintf(version, size, "%s", last(-1, "driver", rest) ? rest : "580.95.05");
    return SUCCESS;
}

int nvmlSystemGetNVMLVersion(char *version, unsigned int size)
{
    char rest[512];
    ENTER("nvmlSystemGetNVMLVersion");
    snprintf(version, size, "13.%s", last(-1, "driver", rest) ? rest : "580.95.05");
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion(int *version) { ENTER("nvmlSystemGetCudaDriverVersion"); *version = 13000; return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    int order[GPUS];
    ENTER("nvmlDeviceGetCount");
    *count = listed(order);
    return SUCCESS;
}

static int handle(const char *call, int gpu, void **device)
{
    int code = enter(call, gpu);
    if (!code)
        *device = handle_of(gpu);
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device)
{
    int order[GPUS];
    if (!load())
        return DRIVER_NOT_LOADED;
    return (int)index < listed(order) ? handle("nvmlDeviceGetHandleByIndex", order[index], device) : INVALID_ARGUMENT;
}

static int search(const char *call, const char *wanted, void (*name)(int, char *, unsigned int), void **device)
{
    int order[GPUS], count = load() ? listed(order) : 0;
    char found[64];
    for (int i = 0; i < count; i++) {
        name(order[i], found, sizeof found);
        if (!strcmp(found, wanted))
            return handle(call, order[i], device);
    }
    return NOT_FOUND;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) { return search("nvmlDeviceGetHandleByUUID", uuid, uuid_of, device); }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) { return search("nvmlDeviceGetHandleByPciBusId", id, bus_id_of, device); }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int size) { GPU("nvmlDeviceGetUUID"); uuid_of(gpu, uuid, size); return SUCCESS; }

int nvmlDeviceGetIndex(void *device, unsigned int *index)
{
    int order[GPUS];
    GPU("nvmlDeviceGetIndex");
    for (int i = listed(order) - 1; i >= 0; i--)
        if (order[i] == gpu)
            *index = i;
    return SUCCESS;
}

int nvmlDeviceGetName(void *device, char *name, unsigned int size)
{
    char rest[512];
    GPU("nvmlDeviceGetName");
    snprintf(name, size, "%s", last(gpu, "name", rest) ? rest : "NVIDIA Simulated");
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(void *device, pci_t *pci)
{
    GPU("nvmlDeviceGetPciInfo");
    memset(pci, 0, sizeof *pci);
    pci->bus = gpu + 16;
    snprintf(pci->legacy, sizeof pci->legacy, "0000:%02X:00.0", gpu + 16);
    bus_id_of(gpu, pci->bus_id, sizeof pci->bus_id);
    return SUCCESS;
}

int nvmlDeviceGetMigMode(void *device, unsigned int *current, unsigned int *pending)
{
    GPU("nvmlDeviceGetMigMode");
    *current = *pending = (unsigned int)number(gpu, "mig", 0);
    return SUCCESS;
}

int nvmlDeviceIsMigDeviceHandle(void *device, unsigned int *is) { GPU("nvmlDeviceIsMigDeviceHandle"); (void)gpu; *is = 0; return SUCCESS; }

int nvmlDeviceGetUtilizationRates(void *device, rates_t *rates)
{
    GPU("nvmlDeviceGetUtilizationRates");
    rates->gpu = sample(gpu, newest());
    rates->memory = 0;
    return SUCCESS;
}

/* Like the real one, told no buffer it answers the size of the ring, and none of the samples wanted is "not found". */
int nvmlDeviceGetSamples(void *device, int kind, u64 since, int *type, unsigned int *count, sample_t *samples)
{
    GPU("nvmlDeviceGetSamples");
    long long to = newest(), from = to - RING + 1 > 1 ? to - RING + 1 : 1;
    unsigned int room = *count, found = 0;
    *type = 1;
    *count = RING;
    if (!samples)
        return SUCCESS;
    for (; kind == 1 && from <= to; from++) {
        if ((u64)(from * PERIOD_US) <= since)
            continue;
        if (found == room)
            return INSUFFICIENT_SIZE;
        samples[found].stamp = from * PERIOD_US;
        samples[found++].value.u = sample(gpu, from);
    }
    *count = found;
    return found ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory)
{
    GPU("nvmlDeviceGetMemoryInfo");
    memory->used = (u64)(number(gpu, "memory_mib", 0) * 1048576);
    memory->total = (u64)(number(gpu, "memory_total_mib", 98304) * 1048576);
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2_t *memory)
{
    memory_t first;
    int code = nvmlDeviceGetMemoryInfo(device, &first);
    if (!code)
        *memory = (memory_v2_t){memory->version, first.total, 0, first.free, first.used};
    return code;
}

#define NUMBER(function, call, type, key, fallback, scale) \
    int function(void *device, type *value) { GPU(call); *value = (type)(number(gpu, key, fallback) * scale); return SUCCESS; }
NUMBER(nvmlDeviceGetPowerUsage, "nvmlDeviceGetPowerUsage", unsigned int, "power_watts", 70, 1000)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "nvmlDeviceGetEnforcedPowerLimit", unsigned int, "power_limit_watts", 600, 1000)
NUMBER(nvmlDeviceGetPowerManagementLimit, "nvmlDeviceGetPowerManagementLimit", unsigned int, "power_limit_watts", 600, 1000)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, "nvmlDeviceGetCurrentClocksEventReasons", u64, "throttle", 0, 1)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, "nvmlDeviceGetCurrentClocksThrottleReasons", u64, "throttle", 0, 1)
NUMBER(nvmlDeviceGetPerformanceState, "nvmlDeviceGetPerformanceState", unsigned int, "performance_state", 0, 1)
NUMBER(nvmlDeviceGetPersistenceMode, "nvmlDeviceGetPersistenceMode", unsigned int, "persistence", 1, 1)
NUMBER(nvmlDeviceGetComputeMode, "nvmlDeviceGetComputeMode", unsigned int, "compute_mode", 0, 1)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "nvmlDeviceGetCurrPcieLinkGeneration", unsigned int, "pcie_generation", 5, 1)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "nvmlDeviceGetMaxPcieLinkGeneration", unsigned int, "pcie_generation_max", 5, 1)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "nvmlDeviceGetCurrPcieLinkWidth", unsigned int, "pcie_width", 16, 1)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "nvmlDeviceGetMaxPcieLinkWidth", unsigned int, "pcie_width_max", 16, 1)
NUMBER(nvmlDeviceGetPcieReplayCounter, "nvmlDeviceGetPcieReplayCounter", unsigned int, "pcie_replays", 0, 1)
/* The counters of all kinds of errors, of all links, are one. */
#define COUNTER(function, key) \
    int function(void *device, int one, int other, u64 *count) { (void)one, (void)other; GPU(#function); *count = (u64)number(gpu, key, 0); return SUCCESS; }
COUNTER(nvmlDeviceGetTotalEccErrors, "ecc_errors")
COUNTER(nvmlDeviceGetNvLinkErrorCounter, "nvlink_errors")

int nvmlDeviceGetNvLinkState(void *device, unsigned int link, unsigned int *active)
{
    GPU("nvmlDeviceGetNvLinkState");
    unsigned int links = (unsigned int)number(gpu, "nvlinks", 0);
    if (link >= links)
        return links ? INVALID_ARGUMENT : NOT_SUPPORTED;
    *active = link < links - (unsigned int)number(gpu, "nvlinks_down", 0);
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(void *device, unsigned int *corrected, unsigned int *uncorrected, unsigned int *pending, unsigned int *failed)
{
    char rest[512];
    GPU("nvmlDeviceGetRemappedRows");
    *corrected = *uncorrected = *pending = *failed = 0;
    if (last(gpu, "remapped_rows", rest))
        sscanf(rest, "%u %u %u %u", corrected, uncorrected, pending, failed);
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(void *device, u64 *millijoules)
{
    GPU("nvmlDeviceGetTotalEnergyConsumption");
    double now = monotonic(), before = energy_at[gpu % GPUS] ? energy_at[gpu % GPUS] : now;
    energy_at[gpu % GPUS] = now;
    energy[gpu % GPUS] += number(gpu, "power_watts", 70) * (now - before);
    *millijoules = (u64)(number(gpu, "energy_joules", energy[gpu % GPUS]) * 1000);
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(void *device, int kind, unsigned int *clock)
{
    (void)kind;
    GPU("nvmlDeviceGetClockInfo");
    *clock = (unsigned int)number(gpu, "sm_clock_mhz", 1980);
    return SUCCESS;
}

int nvmlDeviceGetTemperatureV(void *device, temperature_t *temperature)
{
    GPU("nvmlDeviceGetTemperatureV");
    temperature->temperature = (int)(long long)number(gpu, "temperature", 40);
    return SUCCESS;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned int *temperature)
{
    (void)sensor;
    GPU("nvmlDeviceGetTemperature");
    *temperature = (unsigned int)(long long)number(gpu, "temperature", 40);
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(void *device, int count, field_t *fields)
{
    GPU("nvmlDeviceGetFieldValues");
    int links = number(gpu, "nvlinks", 0) > 0;
    for (int i = 0; i < count; i++) {
        int moved = links && (fields[i].id == 138 || fields[i].id == 139);
        fields[i].type = moved ? 3 : 1;
        fields[i].result = fields[i].id == 230 || moved ? SUCCESS : NOT_SUPPORTED;
        if (moved)
            fields[i].value.ull = (u64)(number(gpu, "nvlink_kib_per_second", 0) * monotonic());
        else
            fields[i].value.u = (unsigned int)number(gpu, "recovery_action", 0);
    }
    return SUCCESS;
}

static int processes(int gpu, const char *key, unsigned int *count, process_t *found)
{
    char rest[512], memory[32];
    unsigned int room = found ? *count : 0, pid;
    *count = 0;
    for (const char *at = text; (at = next(at, gpu, key, rest));) {
        if (sscanf(rest, "%u %31s", &pid, memory) != 2)
            continue;
        if (*count < room)
            found[*count] = (process_t){pid, strcmp(memory, "unknown") ? strtoull(memory, NULL, 10) << 20 : ~0ULL, ~0U, ~0U};
        ++*count;
    }
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, process_t *found)
{
    GPU("nvmlDeviceGetComputeRunningProcesses");
    return processes(gpu, "process", count, found);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned int *count, process_t *found)
{
    GPU("nvmlDeviceGetGraphicsRunningProcesses");
    return processes(gpu, "graphics", count, found);
}
