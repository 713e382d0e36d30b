/* Preloaded: a name server that does not answer. An address that is asked for is read as ever. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <unistd.h>

typedef int look_up(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                struct addrinfo **found) {
    unsigned char address[16];
    int is_address = !host || inet_pton(AF_INET, host, address) == 1 ||
                     inet_pton(AF_INET6, host, address) == 1;
    while (!is_address) pause();
    return ((look_up *)dlsym(RTLD_NEXT, "getaddrinfo"))(host, port, hints, found);
}
