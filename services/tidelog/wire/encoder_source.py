"""Writes the encoder of one message in one version: straight-line Python, with a loop for each array and no
call for each field.

A run of fixed-size fields is packed with one `struct.Struct.pack`, together with the length that follows it.
All parts are joined once. A `records` value ends the current chunk and is put into the list of chunks as it
was passed. Fields that the version does not have are left out, whatever their value.

An encoder in steps is a generator with the same lines, which yields after each element that is not a number.
It joins its parts now and then, because a million of them take long.
"""

from __future__ import annotations

from typing import Final

from tidelog.wire import primitives
from tidelog.wire.schema import FIXED_SIZE_FORMATS, F, FieldType, Message, Struct
from tidelog.wire.source import Source, array_of

PARTS_BEFORE_JOIN: Final = 4_096
"""The parts that an encoder in steps collects before it joins them."""
_BLOBS = ("string", "bytes", "records")


def write_encoder(message: type[Message], version: int, *, in_steps: bool = False) -> Source:
    """Returns the source of `encode(message) -> list of chunks`."""
    return _EncoderWriter(message, version, in_steps).write()


class _EncoderWriter:
    def __init__(self, message: type[Message], version: int, in_steps: bool) -> None:
        self._message = message
        self._version = version
        self._in_steps = in_steps
        self._flexible = version >= message.FLEXIBLE_FROM
        self._pending: list[tuple[str, str]] = []
        self._tag_functions: list[tuple[str, type[Struct]]] = []
        self._source = Source()
        self._source.names.update(
            UVARINTS=primitives.UVARINTS,
            join=b"".join,
            uvarint=primitives.uvarint,
            string_length=primitives.string_length_uvarint,
            pack_long_array=primitives.pack_long_array,
            pack_tagged_fields=primitives.pack_tagged_fields,
        )

    def write(self) -> Source:
        source = self._source
        has_records = _has_records(self._message)
        with source.block("def encode(message):"):
            source.line("out = []")
            source.line("add = out.append")
            if has_records:
                source.line("chunks = []")
            elif self._in_steps:
                source.line("joined = []")
            self._struct(self._message, "message")
            self._flush()
            if has_records:
                source.line("if out: chunks.append(join(out))")
                source.line("return chunks")
            elif self._in_steps:
                source.line("return [join([*joined, *out])]")
            else:
                source.line("return [join(out)]")
            if self._in_steps:
                source.line("yield")  # also of a message without arrays
        self._in_steps = False  # the functions of tagged fields are no generators
        while self._tag_functions:
            self._tag_function(*self._tag_functions.pop())
        return source

    def _flush(self) -> None:
        """Packs the pending run of fixed-size values."""
        if self._pending:
            self._source.line(f"add({self._packed(self._pending)})")
            self._pending.clear()

    def _packed(self, run: list[tuple[str, str]]) -> str:
        letters = "".join(letter for letter, _ in run)
        if not letters.strip("x"):
            return repr(bytes(len(letters)))
        arguments = ", ".join(expression for _, expression in run if expression)
        return f"{self._source.struct_method(letters, 'pack')}({arguments})"

    def _compact_length(self, length: str, long: str = "uvarint") -> None:
        """Appends a varint after the pending run, in the same `pack` if it takes one byte."""
        source = self._source
        if not self._pending:
            source.line(f"add(UVARINTS[{length}] if {length} < 128 else {long}({length}))")
            return
        source.line(f"if {length} < 128: add({self._packed([*self._pending, ('B', length)])})")
        source.line(f"else: add({self._packed(self._pending)}); add({long}({length}))")
        self._pending.clear()

    def _struct(self, kind: type[Struct], of: str) -> None:
        tagged: list[F] = []
        for field in kind.FIELDS:
            if not field.is_in(self._version):
                continue
            if field.is_tagged_in(self._version):
                tagged.append(field)
            else:
                self._value(field.kind, field.is_nullable_in(self._version), f"{of}.{field.name}")
        if not self._flexible:
            return
        if not tagged:
            self._pending.append(("x", ""))
            return
        function = f"tags_of_{kind.__name__}"
        if function not in self._source.names:
            self._source.names[function] = None
            self._tag_functions.append((function, kind))
        tests = " or ".join(self._is_set(kind, field, f"{of}.{field.name}") for field in tagged)
        with self._source.block(f"if {tests}:"):
            if self._pending:
                self._source.line(f"add({self._packed(self._pending)})")
            self._source.line(f"add({function}({of}))")
        self._source.line(f"else: add({self._packed([*self._pending, ('x', '')])})")
        self._pending.clear()

    def _is_set(self, kind: type[Struct], field: F, value: str) -> str:
        """Returns a test whether a tagged field differs from its default. Only then is the field sent."""
        default = self._source.default_of(kind, field)
        if default == "None":
            return f"{value} is not None"
        if default == "[]" and field.is_nullable_in(self._version):
            return f"({value} is None or {value})"
        return value if default in ("[]", "False", "0") else f"{value} != {default}"

    def _tag_function(self, function: str, kind: type[Struct]) -> None:
        source = self._source
        del source.names[function]
        with source.block(f"def {function}(message):"):
            source.line("fields = []")
            tagged = [field for field in kind.FIELDS if field.is_tagged_in(self._version)]
            for field in sorted(tagged, key=lambda field: field.tag):
                test = self._is_set(kind, field, f"message.{field.name}")
                nullable = field.is_nullable_in(self._version)
                if not isinstance(field.kind, (str, tuple)) and not nullable:
                    default = source.name_for("default", field.kind())
                    test += f" and message.{field.name} != {default}"
                with source.block(f"if {test}:"):
                    source.line("out = []")
                    source.line("add = out.append")
                    self._value(field.kind, nullable, f"message.{field.name}", null_struct=b"\0")
                    self._flush()
                    source.line(f"fields.append(({field.tag}, join(out)))")
            source.line("return pack_tagged_fields(fields)")

    def _value(self, kind: FieldType, nullable: bool, value: str, null_struct: bytes = b"\xff") -> None:
        """Encodes one value. `null_struct` is the byte of a null struct: -1, or 0 in a tagged field."""
        element = array_of(kind)
        if element is not None:
            self._array(element, nullable, value)
        elif not isinstance(kind, str):
            assert not isinstance(kind, tuple)
            self._inner_struct(kind, null_struct if nullable else None, value)
        elif kind in _BLOBS:
            self._blob(kind, nullable, value)
        else:
            self._pending.append((FIXED_SIZE_FORMATS[kind], f"{value}.bytes" if kind == "uuid" else value))

    def _inner_struct(self, kind: type[Struct], null: bytes | None, value: str) -> None:
        source = self._source
        variable = source.new("s")
        source.line(f"{variable} = {value}")
        if null is None:
            self._struct(kind, variable)
            return
        self._flush()
        source.line(f"if {variable} is None: add({null!r})")
        with source.block("else:"):
            self._pending.append(("b", "1"))
            self._struct(kind, variable)
            self._flush()

    def _blob(self, kind: str, nullable: bool, value: str) -> None:
        source = self._source
        data, length = source.new("b"), source.new("n")
        plus_one = " + 1" if self._flexible else ""
        source.line(f"{data} = {value}")
        encoded = f"{data} = {data}.encode(); " if kind == "string" else ""
        if nullable:
            null = "0" if self._flexible else "-1"
            empty = f'{data} = b""; ' if kind != "records" else ""
            source.line(f"if {data} is None: {empty}{length} = {null}")
            source.line(f"else: {encoded}{length} = len({data}){plus_one}")
        else:
            source.line(f"{encoded}{length} = len({data}){plus_one}")
        if self._flexible:
            self._compact_length(length, "string_length" if kind == "string" else "uvarint")
        else:
            self._pending.append(("h" if kind == "string" else "i", length))
            self._flush()
        if kind != "records":
            source.line(f"add({data})")
            return
        with source.block(f"if {length} > {1 if self._flexible else 0}:"):
            source.line("chunks.append(join(out))")
            source.line("out.clear()")
            source.line(f"chunks.append({data})")

    def _array(self, element: FieldType, nullable: bool, value: str) -> None:
        source = self._source
        values, length = source.new("a"), source.new("n")
        source.line(f"{values} = {value}")
        if isinstance(element, str) and element not in _BLOBS and element != "uuid":
            self._numbers(element, nullable, values)
            return
        plus_one, null = (" + 1", "0") if self._flexible else ("", "-1")
        if nullable:
            source.line(f"if {values} is None: {values} = (); {length} = {null}")
            source.line(f"else: {length} = len({values}){plus_one}")
        else:
            source.line(f"{length} = len({values}){plus_one}")
        if self._flexible:
            self._compact_length(length)
        else:
            self._pending.append(("i", length))
            self._flush()
        item = source.new("o")
        with source.block(f"for {item} in {values}:"):
            if isinstance(element, str):
                self._value(element, False, item)
            else:
                assert not isinstance(element, tuple)
                self._struct(element, item)
            self._flush()
            if self._in_steps:
                if not _has_records(self._message):
                    with source.block(f"if len(out) > {PARTS_BEFORE_JOIN}:"):
                        source.line("joined.append(join(out))")
                        source.line("out.clear()")
                source.line("yield")

    def _numbers(self, element: str, nullable: bool, values: str) -> None:
        """Encodes an array of numbers with its length in one `pack`, which is prepared in advance for short
        arrays.
        """
        source = self._source
        letter = FIXED_SIZE_FORMATS[element]
        prefix, plus_one = ("B", " + 1") if self._flexible else ("i", "")
        packers = f"pack_{prefix}n{letter.replace('?', 't')}"
        if packers not in source.names:
            source.names[packers] = primitives.array_packers(prefix, letter)
        self._flush()
        null = "b'\\0'" if self._flexible else r"b'\xff\xff\xff\xff'"
        length = source.new("n")
        test = ""
        if nullable:
            source.line(f"if {values} is None: add({null})")
            test = "el"
        source.line(f"{test}if ({length} := len({values})) < {primitives.SMALL_ARRAY}:")
        source.line(f"    add({packers}[{length}]({length}{plus_one}, *{values}))")
        source.line(f'else: add(pack_long_array("{letter}", {values}, compact={self._flexible}))')


def _has_records(kind: type[Struct]) -> bool:
    for field in kind.FIELDS:
        inner = field.kind[0] if isinstance(field.kind, tuple) else field.kind
        if inner == "records" or (not isinstance(inner, str) and _has_records(inner)):
            return True
    return False
