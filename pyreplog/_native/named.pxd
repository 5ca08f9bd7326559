# Named tuples of what every message makes: made without a call of Python code, or of their type.

cdef extern from *:
    """
    static PyObject *replog_named(PyTypeObject *type, PyObject *items) {
        Py_ssize_t i, count = PyTuple_GET_SIZE(items);
        PyObject *made = type->tp_alloc(type, count);
        for (i = 0; made != NULL && i < count; i++)
            PyTuple_SET_ITEM(made, i, Py_NewRef(PyTuple_GET_ITEM(items, i)));
        return made;
    }
    """
    # Of `type`, a subclass of tuple, with these items.
    tuple named "replog_named"(type kind, tuple items)
