/* Which lines of JSON show a key, or a kind of value of a key, for the first time.
 *
 *     {"a": 1}   new: a, and that it is an integer        {"a": 2}   nothing new        {"a": 2.5}   new: a is real
 *
 * Lines are walked, not checked: whether one decodes is for its reader to say.
 */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

typedef enum { IS_NULL, IS_BOOLEAN, IS_INTEGER, IS_REAL, IS_TIME, IS_TEXT, IS_LIST, IS_OBJECT } Kind;
enum { KINDS = 8, MOST_DEPTH = 64, MOST_PROBES = 64, MOST_MARKS = 256, SHORT_TEXT = 16, LONGEST_TIME = 25 };

/* A slot of the table that this line has set, and what it held before. */
typedef struct {
    uint64_t *slot, before;
} Mark;

typedef struct {
    const uint8_t *at, *end, *limit; /* limit: where the memory behind the line ends */
    Seen seen;
    Mark marks[MOST_MARKS];
    size_t num_marks;
} Line;

static inline uint64_t mixed(uint64_t number) {
    number *= UINT64_C(0x9e3779b97f4a7c15);
    return number ^ number >> 32;
}

/* The number of a key of the object with number `parent`. */
static inline uint64_t number_of(uint64_t parent, Bytes key, const uint8_t *limit) {
    uint64_t number = mixed(parent ^ (left_of(key) + 1)), word;
    for (; left_of(key) > sizeof word; key.at += sizeof word) {
        memcpy(&word, key.at, sizeof word);
        number = mixed(number ^ word);
    }
    size_t rest = left_of(key);
    if (rest > 0 && (size_t)(limit - key.at) >= sizeof word) {
        memcpy(&word, key.at, sizeof word);
        word &= UINT64_MAX >> (8 * (sizeof word - rest));
    } else {
        word = 0;
        memcpy(&word, key.at, rest);
    }
    return mixed(mixed(number ^ word));
}

/* The slot that has the kinds of a key's values, or may get them; NULL if the table is too full. */
static inline uint64_t *slot_of(const Line *line, uint64_t key) {
    for (uint64_t i = 0; i < MOST_PROBES; i++) {
        uint64_t *slot = line->seen.slots + (((key >> KINDS) + i) & line->seen.mask);
        if (*slot >> KINDS == key >> KINDS || *slot == 0) return slot;
    }
    return NULL;
}

/* False if there is no room to note it. */
static bool note(Line *line, uint64_t key, uint64_t *slot, Kind kind) {
    if (slot == NULL) return false;
    uint64_t noted = *slot | (key >> KINDS << KINDS) | UINT64_C(1) << kind;
    if (noted == *slot) return true;
    if (line->num_marks == MOST_MARKS) return false;
    line->marks[line->num_marks++] = (Mark){slot, *slot};
    *slot = noted;
    return true;
}

static inline bool is_digit(uint8_t byte) { return byte >= '0' && byte <= '9'; }

static inline void skip_space(Line *line) {
    while (line->at < line->end && (*line->at == ' ' || *line->at == '\t' || *line->at == '\r')) line->at++;
}

static inline bool skip(Line *line, uint8_t byte) {
    skip_space(line);
    if (line->at == line->end || *line->at != byte) return false;
    line->at++;
    return true;
}

/* Where one of eight bytes is `byte`: its highest bit; bits of bytes behind the first of these may be wrong. */
static inline uint64_t places_of(uint64_t word, uint8_t byte) {
    uint64_t ones = UINT64_C(0x0101010101010101), others = word ^ ones * byte;
    return (others - ones) & ~others & ones << 7;
}

/* The text behind a quote, up to the next quote that no odd number of backslashes precedes. */
static inline bool read_text(Line *line, Bytes *text) {
    const uint8_t *quote = text->at = line->at;
    for (uint64_t word; (size_t)(line->limit - quote) >= sizeof word && quote - text->at < SHORT_TEXT; quote += sizeof word) {
        memcpy(&word, quote, sizeof word);
        uint64_t quotes = places_of(word, '"'), stops = quotes | places_of(word, '\\') | places_of(word, '\n');
        if (stops == 0) continue;
        if ((stops & -stops) != (quotes & -quotes)) break;
        text->end = quote + __builtin_ctzll(quotes) / 8;
        line->at = text->end + 1;
        return true;
    }
    for (quote = text->at;; quote++) {
        quote = memchr(quote, '"', (size_t)(line->end - quote));
        if (quote == NULL) return false;
        const uint8_t *slash = quote;
        while (slash > text->at && slash[-1] == '\\') slash--;
        if ((quote - slash) % 2 == 0) break;
    }
    text->end = quote;
    line->at = quote + 1;
    return true;
}

/* Two digits below `limit`. */
static bool is_below(const uint8_t *digits, int limit) {
    return is_digit(digits[0]) && is_digit(digits[1]) && (digits[0] - '0') * 10 + digits[1] - '0' < limit;
}

/* hh, hh:mm or hh:mm:ss; of an offset, hhmm too. */
static bool is_clock(Bytes text, bool is_offset) {
    const uint8_t *at = text.at;
    switch (left_of(text)) {
        case 2: return is_below(at, 24);
        case 4: return is_offset && is_below(at, 24) && is_below(at + 2, 60);
        case 5: return is_below(at, 24) && at[2] == ':' && is_below(at + 3, 60);
        case 8: return !is_offset && is_clock((Bytes){at, at + 5}, false) && at[5] == ':' && is_below(at + 6, 60);
        default: return false;
    }
}

/* Whether Arrow reads a text as a time in seconds: YYYY-MM-DD[( |T)clock[Z|(+|-)offset]], of a day that exists. */
static bool is_time(Bytes text) {
    static const uint8_t days[] = {31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    const uint8_t *at = text.at;
    if (left_of(text) < 10 || !is_below(at, 100) || !is_below(at + 2, 100) || at[4] != '-' || !is_below(at + 5, 13) ||
        at[7] != '-' || !is_below(at + 8, 32))
        return false;
    int year = (at[0] - '0') * 1000 + (at[1] - '0') * 100 + (at[2] - '0') * 10 + at[3] - '0';
    int month = (at[5] - '0') * 10 + at[6] - '0', day = (at[8] - '0') * 10 + at[9] - '0';
    bool is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    if (month < 1 || day < 1 || day > days[month - 1] || (month == 2 && day == 29 && !is_leap)) return false;
    if (left_of(text) == 10) return true;
    if (at[10] != ' ' && at[10] != 'T') return false;
    Bytes clock = {at + 11, text.end};
    if (left_of(clock) > 0 && clock.end[-1] == 'Z') {
        clock.end--;
    } else {
        static const size_t lengths[] = {3, 5, 6};
        for (size_t i = 0; i < 3; i++) {
            const uint8_t *sign = clock.end - lengths[i];
            if (sign <= clock.at || (*sign != '+' && *sign != '-')) continue;
            if (!is_clock((Bytes){sign + 1, clock.end}, true)) return false;
            clock.end = sign;
            break;
        }
    }
    return is_clock(clock, false);
}

static int hex_digit(uint8_t byte) {
    if (is_digit(byte)) return byte - '0';
    byte |= 'a' ^ 'A';
    return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

/* The same for a text as JSON has it: .NET writes the plus of an offset as \u002B. */
static bool is_written_time(Bytes text) {
    uint8_t plain[LONGEST_TIME];
    size_t count = 0;
    while (text.at < text.end && count < LONGEST_TIME) {
        if (*text.at != '\\') {
            plain[count++] = *text.at++;
            continue;
        }
        /* Of the other escapes none is in a time. */
        if (left_of(text) < 6 || memcmp(text.at, "\\u00", 4) != 0) return false;
        int high = hex_digit(text.at[4]), low = hex_digit(text.at[5]);
        if (high < 0 || low < 0) return false;
        plain[count++] = (uint8_t)(high * 16 + low);
        text.at += 6;
    }
    return text.at == text.end && is_time((Bytes){plain, plain + count});
}

static inline const uint8_t *skip_digits(const Line *line, const uint8_t *at) {
    /* Eight at once: '0' to '9' begin with 3, also if 6 is added. Behind a line is its end, which is no digit. */
    for (uint64_t word; (size_t)(line->limit - at) >= sizeof word; at += sizeof word) {
        memcpy(&word, at, sizeof word);
        uint64_t above = word + UINT64_C(0x0606060606060606), high = UINT64_C(0xf0f0f0f0f0f0f0f0);
        uint64_t others = ((word & high) | (above & high) >> 4) ^ UINT64_C(0x3333333333333333);
        if (others != 0) return at + __builtin_ctzll(others) / 8;
    }
    while (at < line->end && is_digit(*at)) at++;
    return at;
}

/* The kind of a number: an integer if it has 64 bits at most. */
static bool read_number(Line *line, Kind *kind) {
    static const char largest[] = "922337203685477580";
    bool is_negative = *line->at == '-';
    const uint8_t *digits = line->at + is_negative, *at = skip_digits(line, digits);
    size_t count = (size_t)(at - digits);
    if (count == 0) return false;
    *kind = count < 19 ? IS_INTEGER : IS_REAL;
    if (count == 19) {
        int order = memcmp(digits, largest, 18);
        if (order < 0 || (order == 0 && digits[18] <= '7' + is_negative)) *kind = IS_INTEGER;
    }
    if (at < line->end && *at == '.') {
        *kind = IS_REAL;
        at = skip_digits(line, at + 1);
    }
    if (at < line->end && (*at == 'e' || *at == 'E')) {
        *kind = IS_REAL;
        at++;
        if (at < line->end && (*at == '+' || *at == '-')) at++;
        at = skip_digits(line, at);
    }
    line->at = at;
    return true;
}

static bool read_word(Line *line, const char *word, size_t size) {
    if ((size_t)(line->end - line->at) < size || memcmp(line->at, word, size) != 0) return false;
    line->at += size;
    return true;
}

static bool walk(Line *line, uint64_t key, int depth);

static bool walk_object(Line *line, uint64_t key, int depth) {
    if (skip(line, '}')) return true;
    do {
        Bytes name;
        if (!skip(line, '"') || !read_text(line, &name) || !skip(line, ':') ||
            !walk(line, number_of(key, name, line->limit), depth))
            return false;
    } while (skip(line, ','));
    return skip(line, '}');
}

static bool walk_list(Line *line, uint64_t key, int depth) {
    if (skip(line, ']')) return true;
    uint64_t item = mixed(~key);
    do
        if (!walk(line, item, depth)) return false;
    while (skip(line, ','));
    return skip(line, ']');
}

/* Walks over a value; false if that is not understood, or there is no room to note what is new. */
static bool walk(Line *line, uint64_t key, int depth) {
    skip_space(line);
    if (line->at == line->end || depth == 0) return false;
    Kind kind;
    Bytes text;
    uint64_t *slot = slot_of(line, key);
    switch (*line->at) {
        case '"':
            line->at++;
            if (!read_text(line, &text)) return false;
            kind = slot != NULL && *slot >> IS_TEXT & 1 ? IS_TEXT : is_written_time(text) ? IS_TIME : IS_TEXT;
            return note(line, key, slot, kind);
        case '{':
            line->at++;
            return note(line, key, slot, IS_OBJECT) && walk_object(line, key, depth - 1);
        case '[':
            line->at++;
            return note(line, key, slot, IS_LIST) && walk_list(line, key, depth - 1);
        case 't': return read_word(line, "true", 4) && note(line, key, slot, IS_BOOLEAN);
        case 'f': return read_word(line, "false", 5) && note(line, key, slot, IS_BOOLEAN);
        case 'n': return read_word(line, "null", 4) && note(line, key, slot, IS_NULL);
        default:
            if (*line->at != '-' && !is_digit(*line->at)) return false;
            return read_number(line, &kind) && note(line, key, slot, kind);
    }
}

/* Whether a line is an object, walked to its end, or blank. If not, what it has noted is forgotten. */
static bool is_understood(Line *line, uint64_t root) {
    skip_space(line);
    bool is_known = line->at == line->end;
    if (!is_known && *line->at == '{') {
        is_known = walk(line, root, MOST_DEPTH);
        skip_space(line);
        is_known = is_known && line->at == line->end;
    }
    if (!is_known) {
        for (; line->num_marks > 0; line->num_marks--)
            *line->marks[line->num_marks - 1].slot = line->marks[line->num_marks - 1].before;
    }
    return is_known;
}

bool find_news(Bytes lines, Seen seen, size_t most, News *news) {
    const uint8_t *start = lines.at;
    Line line = {.limit = lines.end, .seen = seen};
    while (lines.at < lines.end && news->count < most) {
        const uint8_t *stop = memchr(lines.at, '\n', left_of(lines));
        line.at = lines.at;
        line.end = stop == NULL ? lines.end : stop;
        line.num_marks = 0;
        bool is_known = is_understood(&line, seen.root);
        if (!is_known || line.num_marks > 0) {
            if (news->count == news->room) {
                size_t room = news->room ? 2 * news->room : 64;
                NewLine *grown = realloc(news->lines, room * sizeof *grown);
                if (grown == NULL) return false;
                news->lines = grown;
                news->room = room;
            }
            news->lines[news->count++] = (NewLine){lines.at - start, (stop == NULL ? lines.end : stop) - start, is_known};
        }
        lines.at = stop == NULL ? lines.end : stop + 1;
    }
    return true;
}
