/* HMAC-SHA-256: FIPS 180-4 (the hash), FIPS 198-1 and RFC 2104 (the code). Keys of at most a block. */
#define _GNU_SOURCE
#include "engine.h"

#include <string.h>
#include <sys/random.h>

enum { BLOCK = 64, DIGEST = OPTCC_HMAC, ROUNDS = 64, INNER = 0x36, OUTER = 0x5c };

struct sha256 {
    uint32_t state[8];
    uint64_t length; /* bytes taken */
    uint8_t block[BLOCK];
};

/* Fractional parts of the cube roots of the first 64 primes, and of the square roots of the first eight. */
static const uint32_t CUBE_ROOTS[ROUNDS] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
static const uint32_t SQUARE_ROOTS[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

static uint32_t turned(uint32_t word, int bits) { return word >> bits | word << (32 - bits); }

static uint32_t big_endian(const uint8_t *b)
{
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

static void stir(struct sha256 *s)
{
    uint32_t w[ROUNDS], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = big_endian(s->block + 4 * i);
    for (int i = 16; i < ROUNDS; i++) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (turned(a, 7) ^ turned(a, 18) ^ a >> 3) + w[i - 7] + (turned(b, 17) ^ turned(b, 19) ^ b >> 10);
    }
    memcpy(v, s->state, sizeof v);
    for (int i = 0; i < ROUNDS; i++) {
        const uint32_t a = v[0], e = v[4];
        const uint32_t one = v[7] + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & v[5]) ^ (~e & v[6])) +
                             CUBE_ROOTS[i] + w[i];
        const uint32_t two = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += one;
        v[0] = one + two;
    }
    for (int i = 0; i < 8; i++)
        s->state[i] += v[i];
}

static void begin(struct sha256 *s)
{
    memcpy(s->state, SQUARE_ROOTS, sizeof s->state);
    s->length = 0;
}

static void take(struct sha256 *s, const uint8_t *bytes, uint64_t length)
{
    for (uint64_t i = 0; i < length; i++) {
        s->block[s->length++ % BLOCK] = bytes[i];
        if (s->length % BLOCK == 0)
            stir(s);
    }
}

static void end(struct sha256 *s, uint8_t digest[DIGEST])
{
    const uint64_t bits = 8 * s->length;
    uint8_t last[8];
    take(s, (const uint8_t[]){0x80}, 1);
    while (s->length % BLOCK != BLOCK - sizeof last)
        take(s, (const uint8_t[]){0}, 1);
    for (int i = 0; i < 8; i++)
        last[i] = (uint8_t)(bits >> (56 - 8 * i));
    take(s, last, sizeof last);
    for (int i = 0; i < DIGEST; i++)
        digest[i] = (uint8_t)(s->state[i / 4] >> (24 - 8 * (i % 4)));
}

void optcc_hmac(const void *key, uint32_t key_length, const void *bytes, uint64_t length, uint8_t code[OPTCC_HMAC])
{
    struct sha256 s;
    uint8_t pad[BLOCK] = {0}, inner[DIGEST];
    memcpy(pad, key, key_length < BLOCK ? key_length : BLOCK);
    for (int i = 0; i < BLOCK; i++)
        pad[i] ^= INNER;
    begin(&s);
    take(&s, pad, BLOCK);
    take(&s, bytes, length);
    end(&s, inner);
    for (int i = 0; i < BLOCK; i++)
        pad[i] ^= INNER ^ OUTER;
    begin(&s);
    take(&s, pad, BLOCK);
    take(&s, inner, DIGEST);
    end(&s, code);
}

int optcc_draw(void *bytes, uint64_t length) { return getrandom(bytes, length, GRND_NONBLOCK) == (ssize_t)length; }

int optcc_same_secret(const void *a, const void *b, uint32_t length)
{
    const volatile uint8_t *x = a, *y = b;
    uint8_t differs = 0;
    for (uint32_t i = 0; i < length; i++)
        differs |= x[i] ^ y[i];
    return differs == 0;
}
