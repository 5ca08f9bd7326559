# Messages of a batch in turn.
from pyreplog._native.blocks cimport Block
from pyreplog._native.messagecolumns cimport Place
from pyreplog._native.messageentry cimport MessageTable

# Those at `count` places, which lie in `block`.
cdef object iterate(MessageTable table, Block block, const Place *places, Py_ssize_t count)
