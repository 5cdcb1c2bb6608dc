/* sha2.c: the functions for SHA-2 that Python's module `_sha2` calls, implemented with libmd.
 *
 * Since Python 3.12 CPython includes a library for SHA-2, which Debian's and Ubuntu's static libpython lacks: hashlib
 * would have no sha256 and sha512. As in that library, all digests with a word size (32 or 64 bits) share the functions
 * after their start, and digest() does not end the computation.
 */
#include <Python.h>

#if PY_VERSION_HEX >= 0x030C0000
#include <sha2.h>

#define NAME(function) python_hashlib_Hacl_Hash_SHA2_##function

#define START(bits)                           \
    SHA2_CTX *NAME(malloc_##bits)(void);      \
    SHA2_CTX *NAME(malloc_##bits)(void)       \
    {                                         \
        SHA2_CTX *state = malloc(sizeof *state); \
                                              \
        if (state)                            \
            SHA##bits##Init(state);           \
        return state;                         \
    }

/* Named after the longer of two digests. update() returns whether the input was too long: never below 2^61 bytes. */
#define REST(bits)                                                                          \
    unsigned char NAME(update_##bits)(SHA2_CTX *state, const uint8_t *input, uint32_t size); \
    void NAME(digest_##bits)(const SHA2_CTX *state, uint8_t *digest);                       \
    SHA2_CTX *NAME(copy_##bits)(const SHA2_CTX *state);                                     \
    void NAME(free_##bits)(SHA2_CTX *state);                                                \
                                                                                            \
    unsigned char NAME(update_##bits)(SHA2_CTX *state, const uint8_t *input, uint32_t size) \
    {                                                                                       \
        SHA##bits##Update(state, input, size);                                              \
        return 0;                                                                           \
    }                                                                                       \
                                                                                            \
    void NAME(digest_##bits)(const SHA2_CTX *state, uint8_t *digest)                        \
    {                                                                                       \
        SHA2_CTX last = *state;                                                             \
                                                                                            \
        SHA##bits##Final(digest, &last);                                                    \
    }                                                                                       \
                                                                                            \
    SHA2_CTX *NAME(copy_##bits)(const SHA2_CTX *state)                                      \
    {                                                                                       \
        SHA2_CTX *copy = malloc(sizeof *copy);                                              \
                                                                                            \
        if (copy)                                                                           \
            *copy = *state;                                                                 \
        return copy;                                                                        \
    }                                                                                       \
                                                                                            \
    void NAME(free_##bits)(SHA2_CTX *state)                                                 \
    {                                                                                       \
        free(state);                                                                        \
    }

START(224)
START(256)
START(384)
START(512)
REST(256)
REST(512)

#endif
