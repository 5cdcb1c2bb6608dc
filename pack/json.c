/* json.c: a small replacement for CPython's module _json, which Debian's static libpython lacks. It reads and writes
 * plain JSON in C; without it, json's Python code would do so several times more slowly. It has no rules of Go
 * (cni/gojson.py) and no positions (podwire/lint/positions.py): these modules use json as it is.
 *
 * One rule: on anything that is not plain, and on every error, json's Python code reads the text from its beginning. So
 * the results are always those of that code. Not plain are fractions and exponents, words other than true, false and
 * null, more levels than LEVELS_MAX, and a decoder with an object_hook or without `strict`. The decoder's parse_string
 * reads strings with control characters or invalid escapes.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define LEVELS_MAX 64
#define SHORT_DIGITS 18 /* these fit into 64 bits */

enum {PAIRS_HOOK, PARSE_INT, PARSE_STRING, IN_PYTHON, PARTS}; /* the items of a scanner, which is a tuple */

/* The state of a reader: the text, its keys, so that equal keys are one object, and the position. */
struct reading {
    PyObject *scanner, *text, *keys;
    Py_ssize_t at, length;
    int kind, levels;
    const void *data;
};

static PyObject *value(struct reading *it);

/* Returns the character at the position, 0 at the end. */
static Py_UCS4 next(const struct reading *it)
{
    return it->at < it->length ? PyUnicode_READ(it->kind, it->data, it->at) : 0;
}

static Py_UCS4 next_word(struct reading *it)
{
    while (next(it) == ' ' || next(it) == '\t' || next(it) == '\n' || next(it) == '\r')
        it->at++;
    return next(it);
}

static PyObject *part(const struct reading *it, int which)
{
    return PyTuple_GET_ITEM(it->scanner, which);
}

/* Reads the four hexadecimal digits of \uXXXX; returns a number above 0xffff if they are invalid. */
static Py_UCS4 code_unit(struct reading *it)
{
    Py_UCS4 c, unit = 0;

    for (int digits = 0; digits < 4; digits++, it->at++) {
        c = next(it);
        if (c >= '0' && c <= '9')
            unit = unit << 4 | (c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            unit = unit << 4 | ((c | 0x20) - 'a' + 10);
        else
            return 0x10000;
    }
    return unit;
}

/* Reads the escape after a backslash, or two for a surrogate pair; returns the character, 0x110000 if invalid. */
static Py_UCS4 escape(struct reading *it)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    Py_UCS4 c = next(it), first, second;
    const char *letter = c && c < 0x80 ? strchr(letters, (int)c) : NULL;
    Py_ssize_t after;

    it->at++;
    if (letter)
        return (unsigned char)meanings[letter - letters];
    if (c != 'u' || (first = code_unit(it)) > 0xffff)
        return 0x110000;
    after = it->at;
    if (!Py_UNICODE_IS_HIGH_SURROGATE(first) || next(it) != '\\')
        return first;
    it->at++;
    if (next(it) == 'u') {
        it->at++;
        second = code_unit(it);
        if (second > 0xffff)
            return 0x110000;
        if (Py_UNICODE_IS_LOW_SURROGATE(second))
            return Py_UNICODE_JOIN_SURROGATES(first, second);
    }
    it->at = after; /* half of a pair is a character */
    return first;
}

/* Reads a string with escapes from its beginning; returns NULL without an exception if parse_string must read it. For
 * 2 MiB of escapes Python takes 0.7 s, this function 0.01 s. */
static PyObject *escaped(struct reading *it, Py_ssize_t start)
{
    Py_ssize_t end = it->at, length = 0;
    PyObject *result = NULL;
    Py_UCS4 *characters, c;

    while (end < it->length && (c = PyUnicode_READ(it->kind, it->data, end)) != '"')
        end += c == '\\' ? 2 : 1;
    if (!(characters = PyMem_New(Py_UCS4, end - start + 1)))
        return PyErr_NoMemory();
    for (it->at = start; (c = next(it)) >= ' ' && c != '"' && c < 0x110000; characters[length++] = c) {
        it->at++;
        if (c == '\\' && (c = escape(it)) > 0x10ffff)
            break;
    }
    if (next(it) == '"' && c <= 0x10ffff) {
        it->at++;
        result = PyUnicode_FromKindAndData(PyUnicode_4BYTE_KIND, characters, length);
    }
    PyMem_Free(characters);
    return result;
}

/* Reads a string, after its opening quotation mark. */
static PyObject *string(struct reading *it)
{
    Py_ssize_t start = ++it->at;
    PyObject *pair, *result;
    Py_UCS4 c;

    while ((c = next(it)) >= ' ' && c != '"' && c != '\\')
        it->at++;
    if (c == '"')
        return PyUnicode_Substring(it->text, start, it->at++);
    if (c == '\\' && ((result = escaped(it, start)) || PyErr_Occurred()))
        return result;
    pair = PyObject_CallFunction(part(it, PARSE_STRING), "OnO", it->text, start, Py_True);
    if (!pair || !PyArg_ParseTuple(pair, "On", &result, &it->at)) {
        Py_XDECREF(pair);
        return NULL;
    }
    Py_INCREF(result);
    Py_DECREF(pair);
    return result;
}

static PyObject *integer(struct reading *it)
{
    Py_ssize_t start = it->at, digits;
    long long number = 0;
    PyObject *text, *result;
    int negative = next(it) == '-';

    it->at += negative;
    digits = it->at;
    while (next(it) >= '0' && next(it) <= '9') {
        if (it->at - digits < SHORT_DIGITS)
            number = number * 10 + (next(it) - '0');
        it->at++;
        if (number == 0)
            break; /* a leading zero is the only digit */
    }
    if (it->at == digits || next(it) == '.' || next(it) == 'e' || next(it) == 'E')
        return NULL;
    if (part(it, PARSE_INT) == (PyObject *)&PyLong_Type && it->at - digits <= SHORT_DIGITS)
        return PyLong_FromLongLong(negative ? -number : number);
    text = PyUnicode_Substring(it->text, start, it->at);
    result = text ? PyObject_CallOneArg(part(it, PARSE_INT), text) : NULL;
    Py_XDECREF(text);
    return result;
}

static PyObject *word(struct reading *it, const char *spelling, PyObject *meaning)
{
    for (; *spelling; spelling++, it->at++)
        if (next(it) != (Py_UCS4)*spelling)
            return NULL;
    Py_INCREF(meaning);
    return meaning;
}

/* Reads an element of an array, or a key and value of an object as a pair. */
static PyObject *element(struct reading *it, int keyed)
{
    PyObject *spelled, *key, *item, *pair = NULL;

    if (!keyed)
        return value(it);
    if (next(it) != '"' || !(spelled = string(it)))
        return NULL;
    key = PyDict_SetDefault(it->keys, spelled, spelled);
    if (key && next_word(it) == ':') {
        it->at++;
        next_word(it);
        if ((item = value(it))) {
            pair = PyTuple_Pack(2, key, item);
            Py_DECREF(item);
        }
    }
    Py_DECREF(spelled);
    return pair;
}

/* Reads the elements from an opening bracket to the closing one. */
static PyObject *elements(struct reading *it, int keyed)
{
    Py_UCS4 end = keyed ? '}' : ']';
    PyObject *result = PyList_New(0), *item;
    int failed;

    it->at++;
    if (result && next_word(it) == end) {
        it->at++;
        return result;
    }
    while (result && (item = element(it, keyed))) {
        failed = PyList_Append(result, item);
        Py_DECREF(item);
        if (failed)
            break;
        if (next_word(it) == end) {
            it->at++;
            return result;
        }
        if (next(it) != ',')
            break;
        it->at++;
        next_word(it);
    }
    Py_XDECREF(result);
    return NULL;
}

static PyObject *object(struct reading *it)
{
    PyObject *pairs = elements(it, 1), *hook = part(it, PAIRS_HOOK), *result;

    if (!pairs)
        return NULL;
    if (hook != Py_None) {
        result = PyObject_CallOneArg(hook, pairs);
    } else if ((result = PyDict_New()) && PyDict_MergeFromSeq2(result, pairs, 1) < 0) {
        Py_CLEAR(result);
    }
    Py_DECREF(pairs);
    return result;
}

/* Reads one value. Returns NULL with an exception for a failure, without one for JSON that is not plain. */
static PyObject *value(struct reading *it)
{
    PyObject *result;

    switch (next(it)) {
    case '"':
        return string(it);
    case 't':
        return word(it, "true", Py_True);
    case 'f':
        return word(it, "false", Py_False);
    case 'n':
        return word(it, "null", Py_None);
    case '{':
    case '[':
        if (it->levels == LEVELS_MAX)
            return NULL;
        it->levels++;
        result = next(it) == '{' ? object(it) : elements(it, 0);
        it->levels--;
        return result;
    default:
        return integer(it);
    }
}

/* scan_once(text, index): returns the value at the index, and the index after it; raises StopIteration. */
static PyObject *scan_once(PyObject *scanner, PyObject *args)
{
    struct reading it = {.scanner = scanner};
    PyObject *result = NULL;

    if (!PyArg_ParseTuple(args, "On", &it.text, &it.at))
        return NULL;
    if (PyUnicode_Check(it.text) && PyUnicode_READY(it.text) == 0 && it.at >= 0 && (it.keys = PyDict_New())) {
        it.length = PyUnicode_GET_LENGTH(it.text);
        it.kind = PyUnicode_KIND(it.text);
        it.data = PyUnicode_DATA(it.text);
        result = value(&it);
        Py_DECREF(it.keys);
    }
    if (result)
        return Py_BuildValue("Nn", result, it.at);
    if (PyErr_Occurred())
        return NULL;
    return PyObject_CallObject(PyTuple_GET_ITEM(scanner, IN_PYTHON), args);
}

static PyMethodDef scan_once_method = {"scan_once", scan_once, METH_VARARGS, NULL};

/* Returns an attribute. Its name is interned: Python's attribute cache is keyed by the string object, so each new one
 * would add an entry. */
static PyObject *attribute(PyObject *object, const char *name)
{
    PyObject *interned = PyUnicode_InternFromString(name), *result = interned ? PyObject_GetAttr(object, interned) : NULL;

    Py_XDECREF(interned);
    return result;
}

/* Returns a function of json's Python code. */
static PyObject *in_python(const char *module, const char *name)
{
    PyObject *code = PyImport_ImportModule(module), *result = code ? attribute(code, name) : NULL;

    Py_XDECREF(code);
    return result;
}

/* make_scanner(decoder): returns its scan_once. */
static PyObject *make_scanner(PyObject *module, PyObject *decoder)
{
    static const char *const names[] = {
        [PAIRS_HOOK] = "object_pairs_hook", [PARSE_INT] = "parse_int", [PARSE_STRING] = "parse_string"};
    PyObject *make = in_python("json.scanner", "py_make_scanner");
    PyObject *plain = make ? PyObject_CallOneArg(make, decoder) : NULL;
    PyObject *hook = attribute(decoder, "object_hook");
    PyObject *strict = attribute(decoder, "strict");
    PyObject *scanner = NULL, *scan = NULL, *item;

    if (!plain || !hook || !strict)
        goto out;
    if (hook != Py_None || strict != Py_True) {
        scan = plain;
        Py_INCREF(scan);
        goto out;
    }
    if (!(scanner = PyTuple_New(PARTS)))
        goto out;
    for (int which = 0; which < IN_PYTHON; which++) {
        if (!(item = attribute(decoder, names[which])))
            goto out;
        PyTuple_SET_ITEM(scanner, which, item);
    }
    Py_INCREF(plain);
    PyTuple_SET_ITEM(scanner, IN_PYTHON, plain);
    scan = PyCFunction_New(&scan_once_method, scanner);
out:
    Py_XDECREF(make);
    Py_XDECREF(plain);
    Py_XDECREF(hook);
    Py_XDECREF(strict);
    Py_XDECREF(scanner);
    return scan;
}

/* encode_basestring(text): returns it in quotation marks, with only the escapes that JSON requires. */
static PyObject *encode_basestring(PyObject *module, PyObject *text)
{
    PyObject *encode, *result;
    Py_UCS4 c;

    if (PyUnicode_Check(text) && PyUnicode_READY(text) == 0) {
        for (Py_ssize_t at = 0;; at++) {
            if (at == PyUnicode_GET_LENGTH(text))
                return PyUnicode_FromFormat("\"%U\"", text);
            c = PyUnicode_READ_CHAR(text, at);
            if (c < ' ' || c == '"' || c == '\\')
                break;
        }
    }
    if (PyErr_Occurred() || !(encode = in_python("json.encoder", "py_encode_basestring")))
        return NULL;
    result = PyObject_CallOneArg(encode, text);
    Py_DECREF(encode);
    return result;
}

static PyMethodDef methods[] = {
    {"make_scanner", make_scanner, METH_O, NULL},
    {"encode_basestring", encode_basestring, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_json", .m_methods = methods};

PyMODINIT_FUNC PyInit__json(void)
{
    return PyModuleDef_Init(&definition);
}
