/* Preloaded into a server that would listen on all addresses of the machine:
 * it listens on the loopback address. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

int bind(int fd, const struct sockaddr *to, socklen_t length) {
    static int (*next)(int, const struct sockaddr *, socklen_t);
    if (!next) next = (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "bind");
    struct sockaddr_in four;
    if (to && to->sa_family == AF_INET && length >= sizeof four) {
        memcpy(&four, to, sizeof four);
        if (four.sin_addr.s_addr == htonl(INADDR_ANY)) {
            four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            return next(fd, (const struct sockaddr *)&four, sizeof four);
        }
    }
    return next(fd, to, length);
}
