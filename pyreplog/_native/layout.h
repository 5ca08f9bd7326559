/* On-disk and wire layout, version 1. FORMAT.md describes it in words; tests/unit/test_format.py compares the two.
 * Everything on disk is little-endian and 8-byte aligned; frames on the wire are big-endian. */
#ifndef REPLOG_LAYOUT_H
#define REPLOG_LAYOUT_H
#include <stddef.h>
#include <stdint.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "pyreplog maps little-endian structures; big-endian machines are not supported"
#endif

enum {
    REPLOG_FORMAT_VERSION = 1,
    REPLOG_FORMAT_COUNTED = 2, /* of segments that may hold records with a count, and of their indexes */
    REPLOG_ALIGN = 8,

    /* record kinds; 0 is never valid, so that zeroed space is never a record */
    REPLOG_KIND_DATA = 1,
    REPLOG_KIND_BATCH = 2,
    REPLOG_KIND_CONTROL = 3,
    REPLOG_KIND_MARKER = 4,
    REPLOG_KIND_BLANK = 5,

    /* record `form` byte: format version in the low four bits, flags above */
    REPLOG_FORM_VERSION_MASK = 0x0f,
    REPLOG_FORM_LONG = 0x10,
    REPLOG_FORM_ATTRIBUTES = 0x20,
    REPLOG_FORM_KEY = 0x40, /* a key is present (it may be empty) */
    REPLOG_FORM_COUNT = 0x80, /* of a short batch record: a count follows the header */

    REPLOG_SHORT_HEADER = 32,
    REPLOG_COUNTED_HEADER = 40,
    REPLOG_LONG_HEADER = 64,
    REPLOG_CRC_FROM = 12, /* the CRC covers [12, stride): all bytes behind the stamp, padding included */
    REPLOG_KEY_MAX = 0xffff,
    REPLOG_ATTRIBUTES_MAX = 0xffff,

    REPLOG_SEGMENT_HEADER = 4096,
    REPLOG_SEGMENT_MIN = 64 * 1024,
    REPLOG_SEGMENT_MAX = 1024 * 1024 * 1024,

    REPLOG_INDEX_BLOCK = 4096, /* sparse index: one entry per this many bytes of segment */
    REPLOG_TIME_BLOCK = 65536, /* event-time range: one per this many bytes of segment */

    REPLOG_FRAME_HEADER = 12,

    /* attribute tags; attributes of a record ascend by tag, so that the event time, if any, comes first */
    REPLOG_TAG_EVENT_TIME = 1, /* i64, us since the epoch */
    REPLOG_TAG_PROPERTY = 2,   /* u16 name length, name, value */
    REPLOG_TAG_PRODUCER = 3,   /* producer name */
    REPLOG_TAG_SEQUENCE = 4,   /* i64 */
    REPLOG_TAG_ORIGIN = 5,     /* of a replicated entry: where it was published */
    REPLOG_ORIGIN_HEAD = 24,   /* bytes of it before its gaps */
    REPLOG_TAG_REPLICATE_TO = 6, /* names of the only clusters to which it is replicated */

    /* value of a batch entry: header, producer, body; the body has a column if the flag of the column is set */
    REPLOG_MESSAGES_VERSION = 1,
    REPLOG_MESSAGES_HEADER = 32,
    REPLOG_MESSAGES_CODEC_MAX = 2,
    REPLOG_MESSAGES_RAW_MAX = 64 << 20, /* greatest size of a body before compression, bytes */
    REPLOG_MESSAGES_KEYS = 0x01,
    REPLOG_MESSAGES_EVENT_TIMES = 0x02,
    REPLOG_MESSAGES_SEQUENCES = 0x04,
    REPLOG_MESSAGES_DELIVER_AT = 0x08,
    REPLOG_MESSAGES_PROPERTIES = 0x10,
    REPLOG_MESSAGES_FLAGS = 0x1f,
};

#define REPLOG_MESSAGES_NO_KEY 0x80000000u /* in a key end: the message has no key */

#define REPLOG_SEGMENT_MAGIC 0x3130474f4c504552ull /* "REPLOG01" */
#define REPLOG_INDEX_MAGIC   0x313058444e495052ull /* "RPINDX01" */
#define REPLOG_TAIL_MAGIC    0x31304c4941545052ull /* "RPTAIL01" */
#define REPLOG_LAG_NONE      0xffffffffu           /* no claim about a synced entry */

/* Records lie at multiples of 8 in a segment, but at any address in what was received: `packed` has the compiler read
 * their fields without an assumption about it. */

/* Common start of both record headers. */
typedef struct __attribute__((packed)) {
    uint32_t length;     /* header + attributes + key + value, without padding */
    uint32_t crc;        /* CRC-32C of bytes [12, stride), continued from `length` as initial value */
    uint32_t stamp;      /* that of the segment; see FORMAT.md */
    uint8_t kind;
    uint8_t form;
    uint16_t key_length;
    int64_t time;        /* append time, us since the epoch */
} replog_record;

typedef struct __attribute__((packed)) {
    replog_record head;
    uint32_t entry_delta; /* entry number - segment's first entry number; of a counted record, of its last entry */
    uint32_t synced_lag;  /* entry number - last entry known to be synced at the write; REPLOG_LAG_NONE: no claim */
} replog_short;

/* A short batch record that takes several entry numbers. */
typedef struct __attribute__((packed)) {
    replog_short head;
    uint32_t count;       /* entry numbers that it takes, at least 1 */
    uint32_t reserved;    /* zero */
} replog_counted;

typedef struct __attribute__((packed)) {
    replog_record head;
    int64_t ledger;
    int64_t entry;
    int64_t lac;          /* highest LAC that the writer knew; -1: none */
    uint64_t ledger_bytes;    /* value bytes of the ledger up to and including this entry */
    uint64_t ledger_messages; /* messages of the ledger up to and including this entry */
} replog_long;

/* Start of the value of a batch entry. */
typedef struct {
    uint8_t version;
    uint8_t codec;            /* of the body: 0 none, 1 zstd, 2 lz4 */
    uint16_t flags;
    uint16_t producer_length;
    uint16_t reserved;        /* zero */
    uint32_t count;           /* messages, at least 1 */
    uint32_t raw_size;        /* bytes of the body before compression */
    int64_t first_sequence;   /* -1: the messages have no sequence numbers */
    int64_t last_sequence;
} replog_messages;

/* First block of a segment file; the rest of the 4096 bytes is zero. */
typedef struct {
    uint64_t magic;
    uint32_t crc;         /* CRC-32C of bytes [12, 64) */
    uint16_t version;
    uint16_t min_reader;  /* lowest version of a reader that may read this file */
    uint8_t uuid[16];     /* of the log */
    int64_t base;         /* position of the first byte of this file */
    int64_t size;         /* bytes of this file; all segments of a log have the same size */
    int64_t first_entry;  /* number of the first entry; -1: a log of many ledgers, whose records have no numbers */
    uint32_t epoch;
    uint32_t reserved;    /* zero */
} replog_segment;

/* Sparse index file: header, `blocks` block entries, `ranges` event-time ranges. */
typedef struct {
    uint32_t entry_delta; /* entry numbers before `place` in the segment */
    uint32_t place;       /* offset in the segment / 8, with REPLOG_INDEX_UNIFORM in the top bit */
} replog_index_block;

/* Every record from this block entry to the next one is a numbered entry of the same stride. */
#define REPLOG_INDEX_UNIFORM 0x80000000u
#define REPLOG_INDEX_PLACE_MASK 0x7fffffffu

typedef struct {
    int64_t low, high; /* event times of the records that begin in one time block; low > high: none has one */
} replog_time_range;

typedef struct {
    uint64_t magic;
    uint32_t crc;         /* CRC-32C of bytes [12, 96) */
    uint16_t version;
    uint16_t min_reader;
    uint8_t uuid[16];     /* of the log */
    int64_t base;         /* of the segment */
    int64_t first_entry;
    int64_t entries;      /* entry numbers in the segment */
    uint32_t end;         /* offset behind the last record that is not the blank */
    uint32_t stamp;       /* of the segment */
    uint32_t blocks;
    uint32_t ranges;
    int64_t time_low, time_high; /* append times of the first and the last record */
    uint32_t body_crc;    /* CRC-32C of all bytes behind the header */
    uint32_t reserved;
} replog_index;

/* The `tail` page, memory that the writer shares with readers in other processes. It is never replicated, and after a
 * reboot (another boot_id) it is not trusted. The fields from `start` to `visible_entry` are atomic words. */
typedef struct {
    uint64_t magic;
    uint32_t version;
    uint32_t pid;          /* of the writer */
    uint8_t boot_id[16];
    uint8_t uuid[16];
    int64_t start;         /* position of the first segment */
    int64_t end;           /* position after the last appended record */
    int64_t end_entry;     /* number of the next entry */
    int64_t synced_end;    /* position before which all bytes are synced */
    int64_t synced_entry;  /* number of the first entry not known to be synced */
    int64_t visible;       /* readers stop here: `end`, or `synced_end` of a synced log */
    int64_t visible_entry;
    uint32_t truncations;  /* number of truncations so far */
    uint32_t open;         /* 1 while a writer has the log open */
    uint32_t wake;         /* futex word */
    uint32_t sleepers;     /* 1: a reader waits on `wake` */
    uint32_t unreplicated; /* 1: readers may see entries that too few replicas have */
    uint32_t reserved;
} replog_tail;

_Static_assert(sizeof(replog_index_block) == 8, "index block");
_Static_assert(sizeof(replog_time_range) == 16, "time range");
_Static_assert(sizeof(replog_index) == 96, "index header");
_Static_assert(sizeof(replog_tail) == 128, "tail page");
_Static_assert(sizeof(replog_record) == 24, "record head");
_Static_assert(sizeof(replog_short) == REPLOG_SHORT_HEADER, "short header");
_Static_assert(sizeof(replog_counted) == REPLOG_COUNTED_HEADER, "counted header");
_Static_assert(sizeof(replog_long) == REPLOG_LONG_HEADER, "long header");
_Static_assert(_Alignof(replog_counted) == 1 && _Alignof(replog_long) == 1, "records at any address");
_Static_assert(sizeof(replog_messages) == REPLOG_MESSAGES_HEADER, "messages header");
_Static_assert(sizeof(replog_segment) == 64, "segment header");
_Static_assert(offsetof(replog_record, kind) == REPLOG_CRC_FROM, "CRC starts after the stamp");
_Static_assert(REPLOG_SEGMENT_HEADER % REPLOG_ALIGN == 0, "records start aligned");
#endif
