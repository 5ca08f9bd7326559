# The declarations of layout.h for Cython; FORMAT.md describes the fields.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "layout.h" nogil:
    enum:
        FORMAT_VERSION "REPLOG_FORMAT_VERSION"
        FORMAT_COUNTED "REPLOG_FORMAT_COUNTED"
        ALIGN "REPLOG_ALIGN"
        KIND_DATA "REPLOG_KIND_DATA"
        KIND_BATCH "REPLOG_KIND_BATCH"
        KIND_CONTROL "REPLOG_KIND_CONTROL"
        KIND_MARKER "REPLOG_KIND_MARKER"
        KIND_BLANK "REPLOG_KIND_BLANK"
        FORM_VERSION_MASK "REPLOG_FORM_VERSION_MASK"
        FORM_LONG "REPLOG_FORM_LONG"
        FORM_ATTRIBUTES "REPLOG_FORM_ATTRIBUTES"
        FORM_KEY "REPLOG_FORM_KEY"
        FORM_COUNT "REPLOG_FORM_COUNT"
        SHORT_HEADER "REPLOG_SHORT_HEADER"
        COUNTED_HEADER "REPLOG_COUNTED_HEADER"
        LONG_HEADER "REPLOG_LONG_HEADER"
        CRC_FROM "REPLOG_CRC_FROM"
        KEY_MAX "REPLOG_KEY_MAX"
        ATTRIBUTES_MAX "REPLOG_ATTRIBUTES_MAX"
        SEGMENT_HEADER "REPLOG_SEGMENT_HEADER"
        SEGMENT_MIN "REPLOG_SEGMENT_MIN"
        SEGMENT_MAX "REPLOG_SEGMENT_MAX"
        INDEX_BLOCK "REPLOG_INDEX_BLOCK"
        TIME_BLOCK "REPLOG_TIME_BLOCK"
        FRAME_HEADER "REPLOG_FRAME_HEADER"
        TAG_EVENT_TIME "REPLOG_TAG_EVENT_TIME"
        TAG_PROPERTY "REPLOG_TAG_PROPERTY"
        TAG_PRODUCER "REPLOG_TAG_PRODUCER"
        TAG_SEQUENCE "REPLOG_TAG_SEQUENCE"
        TAG_ORIGIN "REPLOG_TAG_ORIGIN"
        ORIGIN_HEAD "REPLOG_ORIGIN_HEAD"
        TAG_REPLICATE_TO "REPLOG_TAG_REPLICATE_TO"
        MESSAGES_VERSION "REPLOG_MESSAGES_VERSION"
        MESSAGES_HEADER "REPLOG_MESSAGES_HEADER"
        MESSAGES_CODEC_MAX "REPLOG_MESSAGES_CODEC_MAX"
        MESSAGES_RAW_MAX "REPLOG_MESSAGES_RAW_MAX"
        MESSAGES_KEYS "REPLOG_MESSAGES_KEYS"
        MESSAGES_EVENT_TIMES "REPLOG_MESSAGES_EVENT_TIMES"
        MESSAGES_SEQUENCES "REPLOG_MESSAGES_SEQUENCES"
        MESSAGES_DELIVER_AT "REPLOG_MESSAGES_DELIVER_AT"
        MESSAGES_PROPERTIES "REPLOG_MESSAGES_PROPERTIES"
        MESSAGES_FLAGS "REPLOG_MESSAGES_FLAGS"
    const uint64_t SEGMENT_MAGIC "REPLOG_SEGMENT_MAGIC"
    const uint64_t INDEX_MAGIC "REPLOG_INDEX_MAGIC"
    const uint64_t TAIL_MAGIC "REPLOG_TAIL_MAGIC"
    const uint32_t LAG_NONE "REPLOG_LAG_NONE"
    const uint32_t NO_KEY "REPLOG_MESSAGES_NO_KEY"

    ctypedef struct RecordHead "replog_record":
        uint32_t length
        uint32_t crc
        uint32_t stamp
        uint8_t kind
        uint8_t form
        uint16_t key_length
        int64_t time

    ctypedef struct ShortHeader "replog_short":
        RecordHead head
        uint32_t entry_delta
        uint32_t synced_lag

    ctypedef struct CountedHeader "replog_counted":
        ShortHeader head
        uint32_t count
        uint32_t reserved

    ctypedef struct LongHeader "replog_long":
        RecordHead head
        int64_t ledger
        int64_t entry
        int64_t lac
        uint64_t ledger_bytes
        uint64_t ledger_messages

    ctypedef struct MessagesHeader "replog_messages":
        uint8_t version
        uint8_t codec
        uint16_t flags
        uint16_t producer_length
        uint16_t reserved
        uint32_t count
        uint32_t raw_size
        int64_t first_sequence
        int64_t last_sequence

    ctypedef struct SegmentHeader "replog_segment":
        uint64_t magic
        uint32_t crc
        uint16_t version
        uint16_t min_reader
        uint8_t uuid[16]
        int64_t base
        int64_t size
        int64_t first_entry
        uint32_t epoch
        uint32_t reserved

    ctypedef struct IndexBlock "replog_index_block":
        uint32_t entry_delta
        uint32_t place

    ctypedef struct TimeRange "replog_time_range":
        int64_t low
        int64_t high

    ctypedef struct IndexHeader "replog_index":
        uint64_t magic
        uint32_t crc
        uint16_t version
        uint16_t min_reader
        uint8_t uuid[16]
        int64_t base
        int64_t first_entry
        int64_t entries
        uint32_t end
        uint32_t stamp
        uint32_t blocks
        uint32_t ranges
        int64_t time_low
        int64_t time_high
        uint32_t body_crc
        uint32_t reserved

    ctypedef struct TailPage "replog_tail":
        uint64_t magic
        uint32_t version
        uint32_t pid
        uint8_t boot_id[16]
        uint8_t uuid[16]
        int64_t start
        int64_t end
        int64_t end_entry
        int64_t synced_end
        int64_t synced_entry
        int64_t visible
        int64_t visible_entry
        uint32_t truncations
        uint32_t open
        uint32_t wake
        uint32_t sleepers
        uint32_t unreplicated

    uint32_t UNIFORM "REPLOG_INDEX_UNIFORM"
    uint32_t PLACE_MASK "REPLOG_INDEX_PLACE_MASK"


cdef extern from "crc32c.h" nogil:
    uint32_t (*crc32c "replog_crc")(uint32_t crc, const uint8_t *p, size_t n) noexcept
    uint32_t (*crc32c_copy "replog_crc_copy")(uint32_t crc, uint8_t *dst, const uint8_t *src, size_t n, size_t pad) noexcept
