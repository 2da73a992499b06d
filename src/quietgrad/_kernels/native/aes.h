#ifndef QUIETGRAD_AES_H
#define QUIETGRAD_AES_H

#include <stdint.h>

/* 0: no instructions for AES, the caller must bring the key stream; 1: AES-NI; 2: two blocks at a time (VAES). */
int aes_available(int level);

/* The round keys of AES-256, 15 of 16 bytes. */
void aes_expand(const uint8_t key[32], uint8_t rounds[240]);

/* Blocks [first, first + count) of the key stream in counter mode: E(number ‖ block), both big-endian words. */
void aes_blocks(const uint8_t rounds[240], uint64_t number, uint64_t first, int64_t count, uint8_t *out, int kind);

#endif
