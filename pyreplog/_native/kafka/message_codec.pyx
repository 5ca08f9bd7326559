"""Kafka's messages, decoded and encoded by schemas. `pyreplog/kafka/wire/codec.py` makes the schemas.

A `StructSchema` is a struct in one version: where a struct of another version has a field that this one lacks, the value
is the default of the field. Values are named tuples; arrays are tuples; records are views of the message.

Every length is compared with the bytes that are there before anything is allocated for it, and the items of all arrays of
a message are counted: a short message cannot make many objects. The depth of a message is that of its schema.

Threads: schemas are constant. A reader and a writer belong to one call. The GIL is kept: objects are made throughout.
"""

cimport cython
from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport INT32_MAX, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memmove

from pyreplog._native.kafka.wire cimport (
    get_float64, get_int16, get_int32, get_int64, get_uvarint, put_float64, put_int16, put_int32, put_int64, put_uvarint,
    uvarint_size,
)
from pyreplog.errors import InvalidArgumentError, InvalidRequestError, WrongTypeError

cdef extern from "Python.h":
    object PyUnicode_DecodeUTF8(const char *text, Py_ssize_t size, const char *errors)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef extern from *:
    """
    #define replog_allocate(type, size) ((PyTypeObject *)(type))->tp_alloc((PyTypeObject *)(type), (size))
    """
    object allocate "replog_allocate"(object type, Py_ssize_t size)

ITEMS_MAX = 1 << 20
"""Items of arrays in one message, unless the caller says another limit."""

cdef enum:
    DEPTH_MAX = 8
    STRING_MAX = 32767
    UUID_BYTES = 16
    VIEW_BYTES = 4096       # records of this size and above are not copied into a response

cdef enum Kind:
    KIND_BOOL
    KIND_INT8
    KIND_INT16
    KIND_INT32
    KIND_INT64
    KIND_STRING
    KIND_BYTES
    KIND_RECORDS
    KIND_UUID
    KIND_FLOAT64
    KIND_STRUCT

cdef dict KINDS = {
    "bool": KIND_BOOL, "int8": KIND_INT8, "int16": KIND_INT16, "int32": KIND_INT32, "int64": KIND_INT64,
    "string": KIND_STRING, "bytes": KIND_BYTES, "records": KIND_RECORDS, "uuid": KIND_UUID, "float64": KIND_FLOAT64,
    "struct": KIND_STRUCT,
}
cdef Py_ssize_t *FIXED = [1, 1, 2, 4, 8, 0, 0, 0, UUID_BYTES, 8, 0]


# A field of a struct. The objects are borrowed from the schema.
ctypedef struct Field:
    int kind                # Kind of the value; of an array: of its items
    bint array
    bint nullable
    bint present            # in this version
    bint ignorable
    int tag                 # -1: not tagged
    Py_ssize_t item_bytes   # fewest bytes of an item of an array
    PyObject *name
    PyObject *child         # StructSchema of KIND_STRUCT
    PyObject *default


@cython.final
cdef class StructSchema:
    """A struct in one version.

    label: names the message in errors. type: a named tuple. fields: tuples (name, kind, is an array, schema of the struct
    or None, nullable, tag or -1, present in this version, ignorable, default), in the order of the type. flexible: the
    version has tagged fields and compact lengths.
    """

    cdef readonly str label
    cdef readonly object type
    cdef readonly Py_ssize_t min_bytes
    cdef readonly int depth
    cdef readonly bint flexible
    cdef Field *fields
    cdef Py_ssize_t count
    cdef list objects

    def __cinit__(self, str label not None, type type not None, list fields not None, bint flexible):
        cdef Py_ssize_t i
        cdef Field *field
        cdef StructSchema child
        self.label, self.type, self.flexible = label, type, flexible
        self.count, self.objects, self.depth = len(fields), [], 1
        self.fields = <Field *>PyMem_Calloc(self.count + 1, sizeof(Field))
        if self.fields == NULL:
            raise MemoryError("no memory for the schema of a message")
        self.min_bytes = 1 if flexible else 0
        if not issubclass(type, tuple) or len(type()) != self.count:
            raise InvalidArgumentError(f"{label}: expected a named tuple of {self.count} fields with defaults, found {type}")
        for i, (name, kind, array, child, nullable, tag, present, ignorable, default) in enumerate(fields):
            self.objects.append((name, child, default))
            field = &self.fields[i]
            field.kind, field.array, field.nullable = KINDS[kind], array, nullable
            field.tag, field.present, field.ignorable = tag, present, ignorable
            field.name, field.child, field.default = <PyObject *>name, <PyObject *>child, <PyObject *>default
            if child is not None:
                self.depth = max(self.depth, child.depth + 1)
            if present and tag < 0:
                self.min_bytes += min_bytes_of(field, flexible)
            field.item_bytes = child.min_bytes if child is not None else plain_bytes(field.kind, flexible)
            if field.array and field.item_bytes < 1 and present:
                raise InvalidArgumentError(f"{label}: expected items of {name} to have bytes, found none")
        if self.depth > DEPTH_MAX:
            raise InvalidArgumentError(f"{label}: expected at most {DEPTH_MAX} structs in each other, found {self.depth}")

    def __dealloc__(self):
        PyMem_Free(self.fields)

    def decode(self, data, /, *, Py_ssize_t start=0, Py_ssize_t max_items=ITEMS_MAX):
        """Return the message that `data` holds from byte `start` to its end.

        data: bytes-like; views of it, which keep it, are in the result. Raises InvalidRequestError.
        """
        cdef _Reader reader = _Reader(self, data, start, max_items)
        cdef object message = reader.read_struct(self)
        if reader.at != reader.stop:
            raise reader.fault("the end of the message", f"{reader.stop - reader.at} more bytes")
        return message

    def decode_prefix(self, data, /, *, Py_ssize_t start=0, Py_ssize_t max_items=ITEMS_MAX):
        """Return the message that begins at byte `start`, and the number of the byte behind it."""
        cdef _Reader reader = _Reader(self, data, start, max_items)
        cdef object message = reader.read_struct(self)
        return message, reader.at - reader.start

    def encode(self, message, /):
        """Return the message as bytes. Raises InvalidArgumentError and WrongTypeError, which name the field."""
        cdef _Writer writer = _Writer(self)
        writer.write_struct(self, message)
        return b"".join(writer.pieces(NULL))

    def encode_frame(self, message, /, bytes header not None):
        """Return the frame of a message, to be sent in several pieces: its size, the header, the message.

        Records of 4 KiB and more are pieces of their own, not copied: they must not change until they are sent.
        """
        cdef _Writer writer = _Writer(self)
        cdef Py_ssize_t size
        writer.put_bytes(b"\0\0\0\0")
        writer.put_bytes(header)
        writer.write_struct(self, message)
        return writer.pieces(&size)


cdef StructSchema HEADER = StructSchema("request header", tuple, [], False)


def decode_header(data, flexible_from, /):
    """Return what the header of a request says: API key, version, correlation id, client id or None, and the number of
    the byte at which the message begins.

    flexible_from: the first flexible version by API key; an API that is not in it has none. Raises InvalidRequestError.
    """
    cdef _Reader reader = _Reader(HEADER, data, 0, 0)
    cdef Field client = [KIND_STRING, False, True, True, False, -1, 2, <PyObject *>"client_id", NULL, NULL]
    cdef int key, version
    reader.need(8)
    key, version = get_int16(reader.at), get_int16(reader.at + 2)
    correlation = get_int32(reader.at + 4)
    reader.at += 8
    reader.enter(&client)
    client_id = reader.read_sized(&client, False)
    reader.names[0] = NULL
    if version >= <int>flexible_from.get(key, 1 << 16):
        reader.read_tags(HEADER, None)
    return key, version, correlation, client_id, reader.at - reader.start


cdef Py_ssize_t plain_bytes(int kind, bint flexible):
    """Return the fewest bytes of a value that is neither an array nor a struct."""
    if FIXED[kind]:
        return FIXED[kind]
    return 1 if flexible else 2 if kind == KIND_STRING else 4


cdef Py_ssize_t min_bytes_of(const Field *field, bint flexible):
    if field.array:
        return 1 if flexible else 4
    if field.kind == KIND_STRUCT:
        return 1 if field.nullable else (<StructSchema>field.child).min_bytes
    return plain_bytes(field.kind, flexible)


cdef class _Walk:
    """Where in a message a reader or a writer is: the fields from the outermost struct to the value."""

    cdef StructSchema message
    cdef int depth
    cdef PyObject *names[DEPTH_MAX]
    cdef Py_ssize_t indexes[DEPTH_MAX]

    cdef inline void enter(self, const Field *field) noexcept:
        self.names[self.depth], self.indexes[self.depth] = field.name, -1

    cdef str path(self):
        cdef list parts = []
        cdef int i
        for i in range(self.depth + 1):
            if self.names[i] == NULL:
                break
            parts.append(<str>self.names[i] + (f"[{self.indexes[i]}]" if self.indexes[i] >= 0 else ""))
        return ".".join(parts) or "the message"


@cython.final
cdef class _Reader(_Walk):
    cdef const uint8_t *start
    cdef const uint8_t *at
    cdef const uint8_t *stop
    cdef Py_buffer buffer
    cdef object view
    cdef Py_ssize_t items_left
    cdef Py_ssize_t max_items

    def __cinit__(self, StructSchema message, data, Py_ssize_t start, Py_ssize_t max_items):
        PyObject_GetBuffer(data, &self.buffer, PyBUF_SIMPLE)
        if not 0 <= start <= self.buffer.len:
            raise InvalidArgumentError(f"start: expected 0 to {self.buffer.len}, found {start}")
        self.message, self.view = message, None
        self.items_left = self.max_items = max_items
        self.start = <const uint8_t *>self.buffer.buf
        self.at, self.stop = self.start + start, self.start + self.buffer.len

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)

    cdef object fault(self, str expected, str actual):
        return self.fault_at(self.at, expected, actual)

    cdef object fault_at(self, const uint8_t *at, str expected, str actual):
        return InvalidRequestError(self.message.label, self.path(), at - self.start, expected, actual)

    cdef inline int need(self, Py_ssize_t size) except -1:
        if self.stop - self.at < size:
            raise self.fault(f"{size} bytes", f"{self.stop - self.at}")
        return 0

    cdef int64_t uvarint(self) except -1:
        cdef const uint8_t *before = self.at
        cdef int64_t value = get_uvarint(&self.at, self.stop)
        if value < 0:
            raise self.fault_at(before, "a number of at most 32 bits and 5 bytes", bytes(before[:min(self.stop - before, 6)]).hex(" ") or "the end")
        return value

    cdef int64_t size_of(self, const Field *field, bint compact) except -2:
        """Read the length of a string, bytes, records or an array; -1: null. It is not compared with what follows."""
        cdef int64_t size
        cdef const uint8_t *before = self.at
        if compact:
            size = self.uvarint() - 1
        elif field.kind == KIND_STRING and not field.array:
            self.need(2)
            size = get_int16(self.at)
            self.at += 2
        else:
            self.need(4)
            size = get_int32(self.at)
            self.at += 4
        if size < -1 or (size < 0 and not field.nullable):
            raise self.fault_at(before, "a length" if field.nullable else "a length that is not null", f"{size}")
        return size

    cdef object read_struct(self, StructSchema schema):
        cdef object message = allocate(schema.type, schema.count)
        cdef object value
        cdef Field *field
        cdef Py_ssize_t i
        self.names[self.depth] = NULL
        for i in range(schema.count):
            field = &schema.fields[i]
            if field.present and field.tag < 0:
                self.enter(field)
                value = self.read_value(field, schema.flexible)
            else:
                value = <object>field.default
            Py_INCREF(value)
            PyTuple_SET_ITEM(message, i, value)
        self.names[self.depth] = NULL
        if schema.flexible:
            self.read_tags(schema, message)
        return message

    cdef object read_value(self, const Field *field, bint compact):
        cdef int64_t size, i
        cdef object items, item
        if not field.array:
            return self.read_item(field, compact, field.nullable)
        cdef const uint8_t *before = self.at
        size = self.size_of(field, compact)
        if size < 0:
            return None
        if size > (self.stop - self.at) // field.item_bytes:
            raise self.fault_at(before, f"at most {(self.stop - self.at) // field.item_bytes} items in {self.stop - self.at} bytes", f"{size}")
        if size > self.items_left:
            raise self.fault_at(before, f"at most {self.max_items} items in a message", f"{self.max_items - self.items_left + size}")
        self.items_left -= size
        items = PyTuple_New(size)
        for i in range(size):
            self.indexes[self.depth] = i
            item = self.read_item(field, compact, False)
            Py_INCREF(item)
            PyTuple_SET_ITEM(items, i, item)
        return items

    cdef object read_item(self, const Field *field, bint compact, bint nullable):
        cdef int kind = field.kind
        cdef const uint8_t *at
        cdef Py_ssize_t fixed = FIXED[kind]
        if fixed:
            self.need(fixed)
            at = self.at
            self.at += fixed
            if kind == KIND_INT32:
                return get_int32(at)
            if kind == KIND_INT64:
                return get_int64(at)
            if kind == KIND_INT16:
                return get_int16(at)
            if kind == KIND_INT8:
                return <signed char>at[0]
            if kind == KIND_UUID:
                return PyBytes_FromStringAndSize(<const char *>at, UUID_BYTES)
            if kind == KIND_FLOAT64:
                return self.read_float(at)
            return at[0] != 0
        if kind == KIND_STRUCT:
            return self.read_child(field, nullable)
        return self.read_sized(field, compact)

    cdef object read_float(self, const uint8_t *at):
        cdef double number = get_float64(at)
        if number != number:
            raise self.fault_at(at, "a number", "nan")
        return number

    cdef object read_child(self, const Field *field, bint nullable):
        cdef object child
        if nullable:
            self.need(1)
            self.at += 1
            if <signed char>(self.at - 1)[0] < 0:
                return None
        self.depth += 1
        child = self.read_struct(<StructSchema>field.child)
        self.depth -= 1
        return child

    cdef object read_sized(self, const Field *field, bint compact):
        """Read a string, bytes or records. Items of arrays are not null."""
        cdef const uint8_t *at
        cdef const uint8_t *before = self.at
        cdef int64_t size
        if compact:
            size = self.uvarint() - 1
        elif field.kind == KIND_STRING:
            self.need(2)
            size = get_int16(self.at)
            self.at += 2
        else:
            self.need(4)
            size = get_int32(self.at)
            self.at += 4
        if size < 0:
            if size == -1 and field.nullable and not field.array:
                return None
            raise self.fault_at(before, "a length of 0 or more", f"{size}")
        if size > (STRING_MAX if field.kind == KIND_STRING else INT32_MAX):
            raise self.fault_at(before, f"a string of at most {STRING_MAX} bytes", f"{size}")
        if size > self.stop - self.at:
            raise self.fault_at(before, f"{size} bytes", f"{self.stop - self.at}")
        at = self.at
        self.at += size
        if field.kind == KIND_BYTES:
            return PyBytes_FromStringAndSize(<const char *>at, size)
        if field.kind == KIND_RECORDS:
            if self.view is None:
                self.view = PyMemoryView_FromObject(self.buffer.obj).cast("B")
            return self.view[at - self.start:at - self.start + size]
        try:
            return PyUnicode_DecodeUTF8(<const char *>at, size, NULL)
        except UnicodeDecodeError as error:
            raise self.fault_at(at, "text in UTF-8", f"byte {at[error.start]:#04x} at {error.start}") from None

    cdef int read_tags(self, StructSchema schema, object message) except -1:
        """Read the tagged fields of a struct; those that are not known are skipped."""
        cdef int64_t left = self.uvarint(), tag, size, last = -1
        cdef const uint8_t *before
        cdef const uint8_t *stop
        cdef Py_ssize_t i
        cdef object value
        while left:
            left -= 1
            before = self.at
            tag = self.uvarint()
            if tag <= last:
                raise self.fault_at(before, f"a tag above {last}", f"{tag}")
            last = tag
            size = self.uvarint()
            if size > self.stop - self.at:
                raise self.fault_at(before, f"{size} bytes of the field with tag {tag}", f"{self.stop - self.at}")
            i = index_of(schema, tag)
            if i < 0:
                self.at += size
                continue
            self.enter(&schema.fields[i])
            stop, self.stop = self.stop, self.at + size
            value = self.read_value(&schema.fields[i], True)
            if self.at != self.stop:
                raise self.fault_at(before, f"{size} bytes of the field with tag {tag}", f"{size - (self.stop - self.at)}")
            self.stop = stop
            self.names[self.depth] = NULL
            replace_item(message, i, value)
        return 0


cdef Py_ssize_t index_of(StructSchema schema, int64_t tag):
    """Return the number of the field with this tag, -1: there is none."""
    cdef Py_ssize_t i
    for i in range(schema.count):
        if schema.fields[i].tag == tag and schema.fields[i].present:
            return i
    return -1


cdef void replace_item(object message, Py_ssize_t i, object value):
    """Of a tuple that nobody else has."""
    cdef PyObject *before = <PyObject *>PyTuple_GET_ITEM(message, i)
    Py_INCREF(value)
    PyTuple_SET_ITEM(message, i, value)
    Py_DECREF(<object>before)


@cython.final
cdef class _Writer(_Walk):
    cdef uint8_t *data
    cdef Py_ssize_t used, room
    cdef list places            # where in the bytes a view belongs, and the view
    cdef int64_t viewed         # bytes of all views

    def __cinit__(self, StructSchema message):
        self.message, self.places = message, []

    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef uint8_t *extend(self, Py_ssize_t size) except NULL:
        """Return the address of `size` more bytes."""
        cdef void *moved
        if self.room - self.used < size:
            moved = PyMem_Realloc(self.data, 2 * self.room + size + 256)
            if moved == NULL:
                raise MemoryError("no memory for a message")
            self.data, self.room = <uint8_t *>moved, 2 * self.room + size + 256
        self.used += size
        return self.data + self.used - size

    cdef int put_bytes(self, object data) except -1:
        """Append what a bytes-like object holds."""
        cdef Py_buffer view
        cdef uint8_t *p
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            p = self.extend(view.len)
            memcpy(p, view.buf, view.len)
        finally:
            PyBuffer_Release(&view)
        return 0

    cdef list pieces(self, Py_ssize_t *framed):
        """Return what was written. framed: not NULL: the first four bytes become the size of those behind them."""
        cdef list pieces = []
        cdef Py_ssize_t at = 0, place
        if self.used + self.viewed - 4 > INT32_MAX:
            raise InvalidArgumentError(f"{self.message.label}: expected at most {INT32_MAX} bytes, found {self.used + self.viewed}")
        if framed != NULL:
            framed[0] = self.used + self.viewed - 4
            put_int32(self.data, framed[0])
        for place, view in self.places:
            if place > at:
                pieces.append(PyBytes_FromStringAndSize(<const char *>self.data + at, place - at))
            pieces.append(view)
            at = place
        if self.used > at:
            pieces.append(PyBytes_FromStringAndSize(<const char *>self.data + at, self.used - at))
        return pieces

    cdef object fault(self, str expected, str actual):
        return InvalidArgumentError(f"{self.message.label}: {self.path()}: expected {expected}, found {actual}")

    cdef object wrong_type(self, str expected, object value):
        return WrongTypeError(f"{self.message.label}: {self.path()}: expected {expected}, found {type(value).__name__}")

    cdef int write_struct(self, StructSchema schema, object message) except -1:
        cdef Py_ssize_t i
        cdef Field *field
        cdef object value
        cdef int tags = 0
        self.names[self.depth] = NULL
        if not isinstance(message, tuple) or PyTuple_GET_SIZE(message) != schema.count:
            raise self.wrong_type(f"{schema.type.__name__}, or a tuple of {schema.count}", message)
        for i in range(schema.count):
            field = &schema.fields[i]
            value = <object>PyTuple_GET_ITEM(message, i)
            self.enter(field)
            if not field.present:
                if not field.ignorable and value is not <object>field.default and value != <object>field.default:
                    raise self.fault("the default in this version, which does not have the field", repr(value))
            elif field.tag < 0:
                self.write_value(field, schema.flexible, value)
            else:
                tags += not self.is_default(field, value)
        self.names[self.depth] = NULL
        if schema.flexible:
            put_uvarint(self.extend(1), tags)
            self.write_tags(schema, message)
        return 0

    cdef bint is_default(self, const Field *field, object value) except -1:
        """Whether a tagged field is left out."""
        cdef object default = <object>field.default
        if value is default:
            return True
        if field.array and value is not None:
            return default is not None and not value
        return value == default

    cdef int write_tags(self, StructSchema schema, object message) except -1:
        """Write the tagged fields that are not their defaults, by rising tags. There are fewer than 128 of them."""
        cdef Py_ssize_t i, start, size, length
        cdef int tag
        cdef object value
        for tag in range(schema.count):
            i = index_of(schema, tag)
            if i < 0:
                continue
            value = <object>PyTuple_GET_ITEM(message, i)
            self.enter(&schema.fields[i])
            if self.is_default(&schema.fields[i], value):
                continue
            put_uvarint(self.extend(1), tag)
            start = self.used
            self.write_value(&schema.fields[i], True, value)
            size = self.used - start
            length = uvarint_size(size)
            self.extend(length)
            memmove(self.data + start + length, self.data + start, size)
            put_uvarint(self.data + start, size)
        self.names[self.depth] = NULL
        return 0

    cdef int write_size(self, bint compact, bint short, int64_t size) except -1:
        """Write a length; -1: null."""
        if compact:
            put_uvarint(self.extend(uvarint_size(size + 1)), size + 1)
        elif short:
            put_int16(self.extend(2), size)
        else:
            put_int32(self.extend(4), size)
        return 0

    cdef int write_value(self, const Field *field, bint compact, object value) except -1:
        cdef Py_ssize_t i, count
        if not field.array:
            return self.write_item(field, compact, field.nullable, value)
        if value is None:
            if not field.nullable:
                raise self.wrong_type("a tuple or list", value)
            return self.write_size(compact, False, -1)
        if not isinstance(value, (tuple, list)):
            raise self.wrong_type("a tuple or list", value)
        items = value if isinstance(value, tuple) else tuple(value)
        count = PyTuple_GET_SIZE(items)
        self.write_size(compact, False, count)
        for i in range(count):
            self.indexes[self.depth] = i
            self.write_item(field, compact, False, <object>PyTuple_GET_ITEM(items, i))
        return 0

    cdef int write_item(self, const Field *field, bint compact, bint nullable, object value) except -1:
        cdef int kind = field.kind
        if kind <= KIND_INT64:
            return self.write_number(kind, value)
        if kind == KIND_STRUCT:
            return self.write_child(field, nullable, value)
        if kind == KIND_UUID:
            if not isinstance(value, bytes) or len(value) != UUID_BYTES:
                raise self.wrong_type(f"{UUID_BYTES} bytes", value)
            return self.put_bytes(value)
        if kind == KIND_FLOAT64:
            if not isinstance(value, (float, int)):
                raise self.wrong_type("float", value)
            return self.write_float(value)
        if value is None:
            if not nullable:
                raise self.wrong_type("a value", value)
            return self.write_size(compact, kind == KIND_STRING, -1)
        if kind == KIND_STRING:
            return self.write_string(compact, value)
        if kind == KIND_BYTES:
            return self.write_bytes(compact, value)
        return self.write_records(compact, value)

    cdef int write_number(self, int kind, object value) except -1:
        cdef int64_t number, limit
        if kind == KIND_BOOL:
            self.extend(1)[0] = 1 if value else 0
            return 0
        if not isinstance(value, int):
            raise self.wrong_type("int", value)
        limit = <int64_t>((<uint64_t>1 << (8 * FIXED[kind] - 1)) - 1)
        try:
            number = value
        except OverflowError:
            raise self.fault(f"a number of {8 * FIXED[kind]} bits", f"{value}") from None
        if not -limit - 1 <= number <= limit:
            raise self.fault(f"a number of {8 * FIXED[kind]} bits", f"{value}")
        if kind == KIND_INT64:
            put_int64(self.extend(8), number)
        elif kind == KIND_INT32:
            put_int32(self.extend(4), number)
        elif kind == KIND_INT16:
            put_int16(self.extend(2), number)
        else:
            self.extend(1)[0] = <uint8_t>number
        return 0

    cdef int write_float(self, object value) except -1:
        cdef double number
        try:
            number = value
        except OverflowError:
            raise self.fault("a number of 64 bits", f"{value}") from None
        if number != number:
            raise self.fault("a number", "nan")
        put_float64(self.extend(8), number)
        return 0

    cdef int write_child(self, const Field *field, bint nullable, object value) except -1:
        if nullable:
            self.extend(1)[0] = 255 if value is None else 1
            if value is None:
                return 0
        self.depth += 1
        self.write_struct(<StructSchema>field.child, value)
        self.depth -= 1
        return 0

    cdef int write_string(self, bint compact, object value) except -1:
        cdef Py_ssize_t size
        cdef const char *text
        if not isinstance(value, str):
            raise self.wrong_type("str", value)
        text = PyUnicode_AsUTF8AndSize(value, &size)
        if size > STRING_MAX:
            raise self.fault(f"at most {STRING_MAX} bytes of UTF-8", f"{size}")
        self.write_size(compact, True, size)
        memcpy(self.extend(size), text, size)
        return 0

    cdef int write_bytes(self, bint compact, object value) except -1:
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise self.wrong_type("a bytes-like object", value)
        cdef object view = memoryview(value).cast("B")
        self.write_size(compact, False, len(view))
        return self.put_bytes(view)

    cdef int write_records(self, bint compact, object value) except -1:
        """Write records: one bytes-like object, or several that follow each other."""
        cdef object pieces = value if isinstance(value, (tuple, list)) else (value,)
        cdef list views = []
        cdef int64_t size = 0
        for piece in pieces:
            if not isinstance(piece, (bytes, bytearray, memoryview)):
                raise self.wrong_type("a bytes-like object, or several", piece)
            view = memoryview(piece).cast("B")
            views.append(view)
            size += len(view)
        if size > INT32_MAX:
            raise self.fault(f"at most {INT32_MAX} bytes", f"{size}")
        self.write_size(compact, False, size)
        for view in views:
            if len(view) < VIEW_BYTES:
                self.put_bytes(view)
            else:
                self.places.append((self.used, view))
                self.viewed += len(view)
        return 0
