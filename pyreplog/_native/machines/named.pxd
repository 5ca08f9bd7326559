# Makes and reads named tuples without running Python code, for types of which every message makes an instance.
from cpython.tuple cimport PyTuple_GetItem

cdef extern from *:
    """
    static inline PyObject *replog_named(PyTypeObject *type, PyObject *items) {
        Py_ssize_t i, count = PyTuple_GET_SIZE(items);
        PyObject *made = type->tp_alloc(type, count);
        for (i = 0; made != NULL && i < count; i++)
            PyTuple_SET_ITEM(made, i, Py_NewRef(PyTuple_GET_ITEM(items, i)));
        return made;
    }
    """
    # Make an instance of `kind`, a subclass of tuple, with these items.
    tuple named "replog_named"(type kind, tuple items)


cdef inline object item(object named_tuple, Py_ssize_t index):
    """Return an item of a subclass of tuple. Its own `[]` would look for a `__getitem__`: a thousand instructions."""
    return <object>PyTuple_GetItem(named_tuple, index)
