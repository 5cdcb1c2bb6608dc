/* Encodes and decodes netlink messages: a part of the module _podwire, for kernel/wire.py and kernel/rtnl.py.
 *
 *   messages(...)           splits received data into messages
 *   get_attributes(...)     returns the values of some attributes of a message
 *   attribute_offsets(...)  returns the offsets of all attributes of a message
 *   encode_attributes(...)  returns attributes as bytes
 *   same_attributes(...)    returns whether two sequences of attributes are equal
 *
 * A link's message has some 60 attributes: decoding them in Python took a third of a verb's time.
 *
 * One rule: each length is checked against the available data, and no code depends on the type of a message.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <linux/netlink.h>
#include <string.h>

/* One attribute of a message, truncated at the message's end. */
typedef struct {
    int number;
    int is_nested;
    const char *content;
    Py_ssize_t size;
} Attribute;

/* Reads the attribute at an offset and advances the offset; returns false at the end. */
static int
next_attribute(const char *data, Py_ssize_t end, Py_ssize_t *offset, Attribute *attribute)
{
    struct nlattr header;
    Py_ssize_t left = end - *offset, length;

    if (left < (Py_ssize_t)sizeof(header))
        return 0;
    memcpy(&header, data + *offset, sizeof(header));
    attribute->number = header.nla_type & NLA_TYPE_MASK;
    attribute->is_nested = header.nla_type & NLA_F_NESTED;
    attribute->content = data + *offset + sizeof(header);
    length = header.nla_len < sizeof(header) ? (Py_ssize_t)sizeof(header) : header.nla_len;
    attribute->size = (length < left ? length : left) - (Py_ssize_t)sizeof(header);
    *offset = NLA_ALIGN(length) < left ? *offset + NLA_ALIGN(length) : end;
    return 1;
}

/* The format of a number as in the struct module: "H", "I", ... in native byte order, big-endian after ">". */
typedef struct {
    int size;
    int is_signed;
    int is_big;
} Number;

/* Parses a form; returns false if it is not the form of a number. */
static int
number_form(PyObject *form, Number *number)
{
    static const char letters[] = "BHIiQ";
    static const int sizes[] = {1, 2, 4, 4, 8};
    const char *text = PyUnicode_AsUTF8(form), *letter;

    if (!text)
        return 0;
    number->is_big = *text == '>';
    text += number->is_big;
    letter = *text && !text[1] ? strchr(letters, *text) : NULL;
    if (!letter)
        return 0;
    number->size = sizes[letter - letters];
    number->is_signed = *letter == 'i';
    return 1;
}

static PyObject *
value_of(const Attribute *attribute, PyObject *form)
{
    Number number;
    Py_ssize_t size = attribute->size;
    unsigned long long value = 0;

    if (number_form(form, &number)) {
        if (size < number.size)
            return PyErr_Format(PyExc_ValueError, "a number has %zd of %d bytes", size, number.size);
        for (int i = 0; i < number.size; i++) /* the supported machines are little-endian */
            value = value << 8 | (unsigned char)attribute->content[number.is_big ? i : number.size - 1 - i];
        return number.is_signed ? PyLong_FromLong((int)(unsigned int)value) : PyLong_FromUnsignedLongLong(value);
    }
    if (PyErr_Occurred())
        return NULL;
    if (PyUnicode_GET_LENGTH(form) == 0)
        return PyBytes_FromStringAndSize(attribute->content, size);
    while (size && !attribute->content[size - 1])
        size--;
    return PyUnicode_DecodeUTF8(attribute->content, size, "surrogateescape");
}

#define ATTRIBUTES_MAX 24

static PyObject *
netlink_get_attributes(PyObject *self, PyObject *args)
{
    PyObject *specs, *result;
    const char *data;
    Py_ssize_t end, offset, count;
    int numbers[ATTRIBUTES_MAX];
    Attribute attributes[ATTRIBUTES_MAX], attribute;

    if (!PyArg_ParseTuple(args, "y#nO!", &data, &end, &offset, &PyTuple_Type, &specs))
        return NULL;
    count = PyTuple_GET_SIZE(specs);
    if (offset < 0 || count > ATTRIBUTES_MAX)
        return PyErr_Format(PyExc_ValueError, "cannot read %zd attributes at offset %zd", count, offset);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *spec = PyTuple_GET_ITEM(specs, i);

        if (!PyTuple_Check(spec) || PyTuple_GET_SIZE(spec) != 3 || !PyUnicode_Check(PyTuple_GET_ITEM(spec, 1)))
            return PyErr_Format(PyExc_TypeError, "no (number, form, default): %R", spec);
        numbers[i] = (int)PyLong_AsLong(PyTuple_GET_ITEM(spec, 0));
        if (numbers[i] == -1 && PyErr_Occurred())
            return NULL;
        attributes[i].content = NULL;
    }
    while (next_attribute(data, end, &offset, &attribute))
        for (Py_ssize_t i = 0; i < count; i++)
            if (numbers[i] == attribute.number && !attributes[i].content)
                attributes[i] = attribute;
    result = PyTuple_New(count);
    for (Py_ssize_t i = 0; result && i < count; i++) {
        PyObject *spec = PyTuple_GET_ITEM(specs, i), *value;

        if (attributes[i].content)
            value = value_of(&attributes[i], PyTuple_GET_ITEM(spec, 1));
        else
            value = Py_NewRef(PyTuple_GET_ITEM(spec, 2));
        if (value)
            PyTuple_SET_ITEM(result, i, value);
        else
            Py_CLEAR(result);
    }
    return result;
}

/* Appends an entry to a list; returns the list, or NULL after releasing both on failure. */
static PyObject *
extended(PyObject *list, PyObject *entry)
{
    if (!entry || PyList_Append(list, entry) < 0)
        Py_CLEAR(list);
    Py_XDECREF(entry);
    return list;
}

static PyObject *
netlink_attribute_offsets(PyObject *self, PyObject *args)
{
    PyObject *result;
    const char *data;
    Py_ssize_t end, offset, start;
    Attribute attribute;

    if (!PyArg_ParseTuple(args, "y#n", &data, &end, &offset))
        return NULL;
    if (offset < 0)
        return PyErr_Format(PyExc_ValueError, "invalid offset in a message: %zd", offset);
    result = PyList_New(0);
    for (start = offset; result && next_attribute(data, end, &offset, &attribute); start = offset)
        result = extended(result, Py_BuildValue("in", attribute.number, start));
    return result;
}

static PyObject *
netlink_messages(PyObject *self, PyObject *data)
{
    PyObject *result;
    const char *start;
    Py_ssize_t end, offset = 0;
    struct nlmsghdr header;

    if (!PyBytes_Check(data))
        return PyErr_Format(PyExc_TypeError, "no bytes: %R", data);
    start = PyBytes_AS_STRING(data);
    end = PyBytes_GET_SIZE(data);
    result = PyList_New(0);
    while (result && end - offset >= (Py_ssize_t)sizeof(header)) {
        PyObject *entry;
        Py_ssize_t left = end - offset, length;

        memcpy(&header, start + offset, sizeof(header));
        length = header.nlmsg_len < left ? (Py_ssize_t)header.nlmsg_len : left;
        if (length == end) /* one message, as usual: no copy */
            entry = Py_BuildValue("HHIO", header.nlmsg_type, header.nlmsg_flags, header.nlmsg_seq, data);
        else
            entry = Py_BuildValue("HHIy#", header.nlmsg_type, header.nlmsg_flags, header.nlmsg_seq, start + offset,
                                  length);
        result = extended(result, entry);
        length = length < (Py_ssize_t)sizeof(header) ? (Py_ssize_t)sizeof(header) : length;
        offset = NLMSG_ALIGN(length) < left ? offset + NLMSG_ALIGN(length) : end;
    }
    return result;
}

/* A growing byte buffer. */
typedef struct {
    char *data;
    size_t size, room;
} Buffer;

/* Appends an attribute; raises MemoryError, or OverflowError if it is longer than 65535 bytes. */
static int
append(Buffer *buffer, unsigned number, const char *content, size_t size)
{
    struct nlattr header = {.nla_len = (unsigned short)(NLA_HDRLEN + size), .nla_type = (unsigned short)number};
    size_t padded = NLA_ALIGN(NLA_HDRLEN + size);

    if (NLA_HDRLEN + size > 0xFFFF) {
        PyErr_Format(PyExc_OverflowError, "an attribute has %zu bytes", size);
        return 0;
    }
    if (buffer->room - buffer->size < padded) {
        size_t room = 2 * buffer->room + padded + 256;
        char *data = PyMem_Realloc(buffer->data, room);

        if (!data) {
            PyErr_NoMemory();
            return 0;
        }
        buffer->data = data;
        buffer->room = room;
    }
    memset(buffer->data + buffer->size, 0, padded);
    memcpy(buffer->data + buffer->size, &header, sizeof(header));
    memcpy(buffer->data + buffer->size + NLA_HDRLEN, content, size);
    buffer->size += padded;
    return 1;
}

static int
append_number(Buffer *buffer, unsigned name, const Number *form, PyObject *value)
{
    char content[8];
    PyObject *index = PyNumber_Index(value);
    unsigned long long number;
    long long least = form->is_signed ? -(1LL << (8 * form->size - 1)) : 0;

    if (!index)
        return 0;
    number = form->is_signed ? (unsigned long long)PyLong_AsLongLong(index) : PyLong_AsUnsignedLongLong(index);
    Py_DECREF(index);
    if (number == (unsigned long long)-1 && PyErr_Occurred())
        return 0;
    if (form->is_signed ? (long long)number < least || (long long)number > -(least + 1)
                        : form->size < 8 && number >> 8 * form->size) {
        PyErr_Format(PyExc_OverflowError, "%R does not fit in %d bytes", value, form->size);
        return 0;
    }
    for (int i = 0; i < form->size; i++)
        content[form->is_big ? form->size - 1 - i : i] = (char)(number >> 8 * i);
    return append(buffer, name, content, form->size);
}

/* Appends a value in its form: a number, text with a final NUL, bytes; any other form has a method "write". */
static int
append_value(Buffer *buffer, unsigned name, PyObject *form, PyObject *value, PyObject *pairs)
{
    extern PyObject *write_name; /* in _podwire.c */
    PyObject *bytes;
    Number number;
    int done = 0;

    if (!PyUnicode_Check(form)) {
        bytes = PyObject_CallMethodObjArgs(form, write_name, value, pairs, NULL);
    } else if (number_form(form, &number)) {
        return append_number(buffer, name, &number, value);
    } else if (PyErr_Occurred()) {
        return 0;
    } else if (PyUnicode_GET_LENGTH(form) == 0) {
        bytes = PyBytes_FromObject(value);
    } else {
        bytes = PyUnicode_AsEncodedString(value, "utf-8", "surrogateescape");
        /* + 1: the NUL that follows the content of every bytes object. */
        done = bytes && append(buffer, name, PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes) + 1);
        Py_XDECREF(bytes);
        return done;
    }
    if (bytes && !PyBytes_Check(bytes))
        PyErr_Format(PyExc_TypeError, "no bytes: %R", bytes);
    else if (bytes)
        done = append(buffer, name, PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes));
    Py_XDECREF(bytes);
    return done;
}

static PyObject *
netlink_encode_attributes(PyObject *self, PyObject *args)
{
    PyObject *pairs, *known, *fast, *result = NULL;
    Buffer buffer = {0};

    if (!PyArg_ParseTuple(args, "OO!", &pairs, &PyDict_Type, &known))
        return NULL;
    fast = PySequence_Tuple(pairs);
    if (!fast)
        return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(fast); i++) {
        PyObject *name, *value, *entry, *form, *pair = PyTuple_GET_ITEM(fast, i);
        unsigned number;

        if (!PyTuple_Check(pair)) {
            PyErr_Format(PyExc_TypeError, "no (name, value): %R", pair);
            goto failed;
        }
        if (!PyArg_ParseTuple(pair, "OO", &name, &value))
            goto failed;
        entry = PyDict_GetItemWithError(known, name);
        if (!entry) {
            if (!PyErr_Occurred())
                PyErr_SetObject(PyExc_KeyError, name);
            goto failed;
        }
        if (!PyTuple_Check(entry)) {
            PyErr_Format(PyExc_TypeError, "no (number, form): %R", entry);
            goto failed;
        }
        if (!PyArg_ParseTuple(entry, "IO", &number, &form) || !append_value(&buffer, number, form, value, pairs))
            goto failed;
    }
    result = PyBytes_FromStringAndSize(buffer.data, buffer.size);
failed:
    Py_DECREF(fast);
    PyMem_Free(buffer.data);
    return result;
}

PyDoc_STRVAR(messages_doc, "messages(data) -> [(type, flags, sequence number, whole message), ...]: data is bytes.");
PyDoc_STRVAR(attribute_offsets_doc, "attribute_offsets(data, start) -> [(number, offset), ...] of all attributes.");
PyDoc_STRVAR(get_attributes_doc,
             "get_attributes(data, start, specs) -> values: for each (number, form, default) the first attribute's.\n"
             "Forms: those of the struct module for numbers, \"s\" for text, \"\" for bytes. Raises ValueError.");
PyDoc_STRVAR(encode_attributes_doc,
             "encode_attributes(pairs, known) -> bytes: encode (name, value) pairs; known: {name: (number, form)}.\n"
             "A form that is not a str has write(value, pairs) -> bytes. Raises KeyError, OverflowError.");

/* Returns whether `existing` has the type and content of `desired`; nested attributes may be in any order, and
 * `existing` may have more of them.
 *
 * If `existing` has several attributes of a type, the last one is compared. Returns false at a nesting depth that no
 * rule has.
 */
static int
is_like(const Attribute *existing, const Attribute *desired, int depth)
{
    Attribute nested, other, last;
    Py_ssize_t offset, desired_offset = 0;

    if (existing->number != desired->number)
        return 0;
    if (!desired->is_nested)
        return existing->size == desired->size && memcmp(existing->content, desired->content, desired->size) == 0;
    while (next_attribute(desired->content, desired->size, &desired_offset, &nested)) {
        last.content = NULL;
        for (offset = 0; next_attribute(existing->content, existing->size, &offset, &other);)
            if (other.number == nested.number)
                last = other;
        if (!last.content || depth == 0 || !is_like(&last, &nested, depth - 1))
            return 0;
    }
    return 1;
}

static PyObject *
netlink_same_attributes(PyObject *self, PyObject *args)
{
    const char *desired, *existing;
    Py_ssize_t desired_size, existing_size, desired_offset = 0, existing_offset = 0;
    Attribute one, other;
    int more;

    if (!PyArg_ParseTuple(args, "y#y#", &desired, &desired_size, &existing, &existing_size))
        return NULL;
    do {
        more = next_attribute(desired, desired_size, &desired_offset, &one);
        if (next_attribute(existing, existing_size, &existing_offset, &other) != more)
            Py_RETURN_FALSE;
        if (more && !is_like(&other, &one, 16))
            Py_RETURN_FALSE;
    } while (more);
    Py_RETURN_TRUE;
}

PyDoc_STRVAR(same_attributes_doc,
             "same_attributes(desired, existing) -> bool: compare two sequences of netlink attributes.\n"
             "Both must have the same types in the same order; nested attributes may be in any order, and `existing`\n"
             "may have more of them.");

PyMethodDef netlink_methods[] = {
    {"messages", netlink_messages, METH_O, messages_doc},
    {"get_attributes", netlink_get_attributes, METH_VARARGS, get_attributes_doc},
    {"attribute_offsets", netlink_attribute_offsets, METH_VARARGS, attribute_offsets_doc},
    {"encode_attributes", netlink_encode_attributes, METH_VARARGS, encode_attributes_doc},
    {"same_attributes", netlink_same_attributes, METH_VARARGS, same_attributes_doc},
    {NULL, NULL, 0, NULL},
};
