#include "limit.h"

#include <string.h>
#include <time.h>

#include "crc32c.h"
#include "layout.h"

static const uint32_t STAMP = 0x5eed5eed;

static int64_t stride_of(int64_t length) { return (length + REPLOG_ALIGN - 1) & ~(int64_t)(REPLOG_ALIGN - 1); }

static int64_t coarse_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME_COARSE, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static const uint8_t *value_of(const limit_values *values, uint32_t number) {
    return values->start[number & (uint32_t)(values->count - 1)];
}

void limit_encode(limit_area *area, const limit_values *values, int64_t count, int64_t per_clock) {
    const uint32_t length = (uint32_t)(REPLOG_SHORT_HEADER + values->size);
    const int64_t stride = stride_of(length), last = area->size - stride;
    int64_t time = 0, until_clock = 0;
    for (int64_t i = 0; i < count; i++) {
        if (area->at > last)
            area->at = REPLOG_SEGMENT_HEADER;
        if (until_clock-- == 0) {
            time = coarse_us();
            until_clock = per_clock - 1;
        }
        uint8_t *p = area->map + area->at;
        replog_short *record = (replog_short *)p;
        record->head.length = length;
        record->head.stamp = STAMP;
        record->head.kind = REPLOG_KIND_DATA;
        record->head.form = REPLOG_FORMAT_VERSION;
        record->head.key_length = 0;
        record->head.time = time;
        record->entry_delta = area->written;
        record->synced_lag = REPLOG_LAG_NONE;
        uint32_t crc = replog_crc(length, p + REPLOG_CRC_FROM, REPLOG_SHORT_HEADER - REPLOG_CRC_FROM);
        record->head.crc = replog_crc_copy(crc, p + REPLOG_SHORT_HEADER, value_of(values, area->written),
                                           (size_t)values->size, (size_t)(stride - length));
        area->written++;
        area->at += stride;
    }
}

void limit_copy(limit_area *area, const limit_values *values, int64_t count) {
    const int64_t stride = stride_of(REPLOG_SHORT_HEADER + values->size), last = area->size - stride;
    for (int64_t i = 0; i < count; i++) {
        if (area->at > last)
            area->at = REPLOG_SEGMENT_HEADER;
        memcpy(area->map + area->at + REPLOG_SHORT_HEADER, value_of(values, area->written), (size_t)values->size);
        area->written++;
        area->at += stride;
    }
}

int64_t limit_check_encoded(const limit_area *area, const limit_values *values) {
    int64_t count = limit_scan(area->map, REPLOG_SEGMENT_HEADER, area->at);
    const int64_t stride = stride_of(REPLOG_SHORT_HEADER + values->size);
    uint32_t number = area->written - (uint32_t)count;
    for (int64_t i = 0; i < count; i++, number++) {
        const replog_short *record = (const replog_short *)(area->map + REPLOG_SEGMENT_HEADER + i * stride);
        if (record->entry_delta != number || memcmp(record + 1, value_of(values, number), (size_t)values->size) != 0)
            return -1;
    }
    return count;
}

int64_t limit_check_copied(const limit_area *area, const limit_values *values) {
    const int64_t stride = stride_of(REPLOG_SHORT_HEADER + values->size);
    const int64_t count = (area->at - REPLOG_SEGMENT_HEADER) / stride;
    uint32_t number = area->written - (uint32_t)count;
    for (int64_t i = 0; i < count; i++, number++) {
        const uint8_t *copy = area->map + REPLOG_SEGMENT_HEADER + i * stride + REPLOG_SHORT_HEADER;
        if (memcmp(copy, value_of(values, number), (size_t)values->size) != 0)
            return -1;
    }
    return count;
}

int64_t limit_scan(const uint8_t *map, int64_t start, int64_t stop) {
    int64_t count = 0;
    while (start + REPLOG_SHORT_HEADER <= stop) {
        const replog_record *head = (const replog_record *)(map + start);
        int64_t stride = stride_of(head->length);
        if (head->kind == REPLOG_KIND_BLANK)
            return count;
        if (head->length < REPLOG_SHORT_HEADER || stride > stop - start)
            return -1;
        if (replog_crc(head->length, map + start + REPLOG_CRC_FROM, (size_t)(stride - REPLOG_CRC_FROM)) != head->crc)
            return -1;
        count++;
        start += stride;
    }
    return count;
}
