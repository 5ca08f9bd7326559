# Iterates over the messages of a batch.
from pyreplog._native.system.blocks cimport Block
from pyreplog._native.topic.message_columns cimport Place
from pyreplog._native.topic.message_entry cimport MessageTable

# Iterate over the messages at `count` places, which lie in `block`.
cdef object iterate(MessageTable table, Block block, const Place *places, Py_ssize_t count)
