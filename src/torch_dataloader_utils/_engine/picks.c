/* Blends: the source of each item. */
#include <math.h>

#include "engine.h"

void pick_sources(const BlendRule *rule, double place, size_t count, double *counts, int16_t *picks, int64_t *numbers) {
    for (size_t i = 0; i < count; i++, place += 1) {
        double at = place > rule->least ? place : rule->least, most = -INFINITY;
        size_t chosen = 0;
        for (size_t source = 0; source < rule->sources; source++) {
            double wanted = (rule->half_slopes[source] * at + rule->shares[source]) * at + rule->base[source];
            double error = wanted - counts[source];
            if (error > most && counts[source] < rule->limits[source]) {
                most = error;
                chosen = source;
            }
        }
        picks[i] = (int16_t)chosen;
        numbers[i] = (int64_t)counts[chosen];
        counts[chosen] += 1;
    }
}
