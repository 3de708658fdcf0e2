/* Permutations: the stable order of random words. */
#include <stdlib.h>

#include "engine.h"

__extension__ typedef unsigned __int128 Product;

/* 65,536 words: two passes, which leave one word in four with others of the same 18 bits (of 8 bits each: 1.2 times as long). */
enum { DIGIT_BITS = 9, DIGITS = 1 << DIGIT_BITS, SPARE_BITS = 2, MOST_PASSES = 4, WORD_BITS = 64 };

/* Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (Philox 4x64, 10 rounds). */
static inline void next_words(const PermutationKey *key, uint64_t block, uint64_t *words) {
    uint64_t key0 = key->seed, key1 = key->epoch;
    uint64_t a = block, b = 0, c = key->index, d = key->purpose;
    for (int round = 0; round < 10; round++) {
        Product first = (Product)a * UINT64_C(0xD2E7470EE14C6C93), second = (Product)c * UINT64_C(0xCA5A826395121157);
        a = (uint64_t)(second >> 64) ^ b ^ key0;
        b = (uint64_t)second;
        c = (uint64_t)(first >> 64) ^ d ^ key1;
        d = (uint64_t)first;
        key0 += UINT64_C(0x9E3779B97F4A7C15);
        key1 += UINT64_C(0xBB67AE8584CAA73B);
    }
    words[0] = a, words[1] = b, words[2] = c, words[3] = d;
}

/* Sorts entries that are nearly sorted: the high bits of a word, and in its lowest bits, `places`, the word's place. */
static void insert_each(uint64_t *entries, size_t count, uint64_t places, const uint64_t *words) {
    for (size_t i = 1; i < count; i++) {
        uint64_t entry = entries[i];
        size_t to = i;
        while (to > 0) {
            uint64_t before = entries[to - 1];
            bool is_alike = ((before ^ entry) & ~places) == 0; /* then the whole words decide, and after them the places */
            uint64_t word = is_alike ? words[entry & places] : 0, word_before = is_alike ? words[before & places] : 0;
            if (word_before != word ? word_before < word : before < entry) break;
            entries[to--] = before;
        }
        entries[to] = entry;
    }
}

/* Radix sort by as many leading bits as tell `count` random words apart, and insertion for what these bits leave. */
void order_words(const uint64_t *words, size_t count, uint64_t *room, int64_t *order) {
    int bits = 1;
    while ((uint64_t)count > UINT64_C(1) << bits) bits++;
    int passes = (bits + SPARE_BITS + DIGIT_BITS - 1) / DIGIT_BITS;
    size_t ends[MOST_PASSES][DIGITS] = {{0}};
    uint64_t places = (UINT64_C(1) << bits) - 1, *from = room, *to = (uint64_t *)order;
    for (size_t i = 0; i < count; i++) {
        from[i] = (words[i] & ~places) | i;
        for (int pass = 0; pass < passes; pass++)
            ends[pass][words[i] >> (WORD_BITS - DIGIT_BITS * (passes - pass)) & (DIGITS - 1)]++;
    }
    for (int pass = 0; pass < passes; pass++) {
        size_t end = 0, *starts = ends[pass];
        for (size_t digit = 0; digit < DIGITS; digit++) {
            end += starts[digit];
            starts[digit] = end - starts[digit];
        }
        int shift = WORD_BITS - DIGIT_BITS * (passes - pass);
        for (size_t i = 0; i < count; i++) to[starts[from[i] >> shift & (DIGITS - 1)]++] = from[i];
        uint64_t *other = from;
        from = to;
        to = other;
    }
    insert_each(from, count, places, words);
    for (size_t i = 0; i < count; i++) order[i] = (int64_t)(from[i] & places);
}

bool permute(const PermutationKey *key, size_t count, int64_t *order) {
    size_t room = (count + 3) / 4 * 4;
    uint64_t *words = count > UINT32_MAX ? NULL : malloc((room + count + 1) * sizeof *words);
    if (words == NULL) return false;
    for (size_t i = 0; i < room; i += 4) next_words(key, i / 4 + 1, words + i); /* numpy counts on before it makes words */
    order_words(words, count, words + room, order);
    free(words);
    return true;
}
