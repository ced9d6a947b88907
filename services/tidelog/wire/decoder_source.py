"""Writes the decoder of one message in one version: straight-line Python, with a loop for each array and no
call for each field.

A run of fixed-size fields is read with one `struct.Struct.unpack_from`, together with the length that follows
it (one byte of the length if it is a varint). The end of the buffer is checked by `unpack_from` itself
(struct.error), by indexing (IndexError) or, for slices, explicitly.

A decoder in steps is a generator with the same lines, which yields after each element that is not a number.
"""

from __future__ import annotations

import struct

from tidelog.wire import primitives
from tidelog.wire.schema import FIXED_SIZE_BYTES, FIXED_SIZE_FORMATS, F, FieldType, Message, Struct
from tidelog.wire.source import Source, array_of

_BLOBS = ("string", "bytes", "records")


def write_decoder(
    message: type[Message], version: int, max_elements: int | None = None, *, in_steps: bool = False
) -> Source:
    """Returns the source of `decode(buffer, position) -> (message, end position)`.

    With `max_elements`, the decoder refuses a message whose arrays and unknown tagged fields have more
    elements in all. It counts the length of an array before it reads the array, so a message of millions of
    tiny elements costs nothing.
    """
    return _DecoderWriter(message, version, max_elements, in_steps).write()


class _DecoderWriter:
    def __init__(
        self, message: type[Message], version: int, max_elements: int | None, in_steps: bool
    ) -> None:
        self._message = message
        self._version = version
        self._max_elements = max_elements
        self._in_steps = in_steps
        self._title = f"{message.__name__} version {version}"
        self._flexible = version >= message.FLEXIBLE_FROM
        self._pending: list[tuple[str, str]] = []
        self._source = Source()
        self._source.names.update(
            struct_error=struct.error,
            unpack_from=struct.unpack_from,
            malformed=primitives.malformed,
            read_uvarint=primitives.read_uvarint,
            read_long_uvarint=primitives.read_long_uvarint,
            read_long_string_length=primitives.read_long_string_length,
            skip_tagged_fields=primitives.skip_tagged_fields,
            new_uuid=primitives.new_uuid,
            cached_uuid=primitives.cached_uuid,
        )

    def write(self) -> Source:
        source = self._source
        with source.block("def decode(buffer, p):"):
            with source.block("try:"):
                source.line("end = len(buffer)")
                if self._max_elements is not None:
                    source.line(f"left = {self._max_elements}")
                if _has_views(self._message):
                    source.line("view = buffer if type(buffer) is memoryview else memoryview(buffer)")
                result = self._struct(self._message)
                self._flush()
                source.line(f"return {result}, p")
            with source.block("except (struct_error, IndexError, UnicodeDecodeError) as error:"):
                source.line(f'raise malformed(f"{self._title}: {{error}}") from error')
            if self._in_steps:
                source.line("yield")  # also of a message without arrays
        return source

    def _refuse(self, what: str) -> str:
        """Returns a statement that raises MalformedMessageError. It evaluates the names in braces."""
        return f'raise malformed(f"{self._title}: {what}")'

    def _count_elements(self, count: str) -> None:
        """Takes `count` elements from the budget of the message."""
        if self._max_elements is not None:
            self._source.line(f"left -= {count}")
            what = f"there are more than {self._max_elements} elements"
            self._source.line(f"if left < 0: {self._refuse(what)}")

    def _flush(self) -> None:
        """Reads the pending run of fixed-size values."""
        if not self._pending:
            return
        letters = "".join(letter for letter, _ in self._pending)
        names = ", ".join(name for _, name in self._pending)
        self._pending.clear()
        if letters == "B":
            self._source.line(f"{names} = buffer[p]")
        else:
            comma = "" if "," in names else ","
            self._source.line(
                f"{names}{comma} = {self._source.struct_method(letters, 'unpack_from')}(buffer, p)"
            )
        self._source.line(f"p += {struct.calcsize('>' + letters)}")

    def _struct(self, kind: type[Struct]) -> str:
        """Returns an expression for the struct. It is valid once the pending run is flushed."""
        values: list[str] = []
        tagged: list[tuple[F, str]] = []
        for field in kind.FIELDS:
            if not field.is_in(self._version):
                values.append(self._source.default_of(kind, field))
            elif field.is_tagged_in(self._version):
                values.append(self._source.new("t"))
                tagged.append((field, values[-1]))
            else:
                values.append(self._value(field.kind, field.is_nullable_in(self._version), field.name))
        if self._flexible:
            self._tagged_section(kind, tagged)
        return f"{self._source.name_for(kind.__name__, kind)}({', '.join(values)})"

    def _tagged_section(self, kind: type[Struct], tagged: list[tuple[F, str]]) -> None:
        source = self._source
        count = source.new("n")
        self._pending.append(("B", count))
        self._flush()
        if not tagged:
            with source.block(f"if {count}:"):
                self._count_elements(count)
                source.line(f"p = skip_tagged_fields(buffer, p, {count})")
            return
        for field, name in tagged:
            source.line(f"{name} = {source.default_of(kind, field)}")
        with source.block(f"if {count}:"):
            source.line(f"if {count} >= 128: {count}, p = read_long_uvarint(buffer, p, {count})")
            self._count_elements(count)
            with source.block(f"for _ in range({count}):"):
                tag, stop = source.new("tag"), source.new("stop")
                source.line(f"{tag}, p = read_uvarint(buffer, p)")
                source.line(f"{stop}, p = read_uvarint(buffer, p)")
                source.line(f"{stop} += p")
                source.line(f"if {stop} > end: {self._refuse('a tagged field ends after the message')}")
                word = "if"
                for field, name in tagged:
                    with source.block(f"{word} {tag} == {field.tag}:"):
                        nullable = field.is_nullable_in(self._version)
                        value = self._value(field.kind, nullable, field.name, null_below=1)
                        self._flush()
                        source.line(f"{name} = {value}")
                        source.line(
                            f"if p != {stop}: {self._refuse('the length of ' + field.name + ' is wrong')}"
                        )
                    word = "elif"
                source.line(f"else: p = {stop}")

    def _value(self, kind: FieldType, nullable: bool, name: str, null_below: int = 0) -> str:
        """Returns an expression for one value. It is valid once the pending run is flushed.

        A null struct is encoded as -1, but as 0 in a tagged field. Any other byte below `null_below` means
        null, too.
        """
        element = array_of(kind)
        if element is not None:
            return self._array(element, nullable, name)
        if not isinstance(kind, str):
            assert not isinstance(kind, tuple)
            return self._nullable_struct(kind, null_below) if nullable else self._struct(kind)
        if kind in _BLOBS:
            return self._blob(kind, nullable, name)
        variable = self._source.new("v")
        self._pending.append((FIXED_SIZE_FORMATS[kind], variable))
        return f"cached_uuid({variable}) or new_uuid({variable})" if kind == "uuid" else variable

    def _nullable_struct(self, kind: type[Struct], null_below: int) -> str:
        source = self._source
        flag, result = source.new("flag"), source.new("v")
        self._pending.append(("b", flag))
        self._flush()
        source.line(f"{result} = None")
        with source.block(f"if {flag} >= {null_below}:"):
            made = self._struct(kind)
            self._flush()
            source.line(f"{result} = {made}")
        return result

    def _blob(self, kind: str, nullable: bool, name: str) -> str:
        source = self._source
        length, stop, result = source.new("n"), source.new("e"), source.new("v")
        shift = 1 if self._flexible else 0
        if kind == "string":
            # One call reads a short string and checks the end of the buffer.
            readers = f"read_text_{shift}"
            source.names[readers] = primitives.COMPACT_TEXT_READERS if shift else primitives.TEXT_READERS
            self._pending.append(("B" if shift else "h", length))
            self._flush()
            with source.block(f"if {shift} <= {length} < {primitives.SHORT_TEXT}:"):
                source.line(f"{result} = {readers}[{length}](buffer, p)[0].decode()")
                source.line(f"p += {length}{' - 1' if shift else ''}")
            with source.block("else:"):
                if shift:
                    source.line(
                        f"if {length} >= 128: {length}, p = read_long_string_length(buffer, p, {length})"
                    )
                source.line(f"{stop} = p + {length} - {shift}")
                self._slice(f'str(buffer[p:{stop}], "utf-8")', stop, result, nullable, name)
            return result
        self._pending.append(("B" if shift else "i", length))
        self._flush()
        if shift:
            source.line(f"if {length} >= 128: {length}, p = read_long_uvarint(buffer, p, {length})")
        source.line(f"{stop} = p + {length} - {shift}")
        self._slice(f"view[p:{stop}]", stop, result, nullable, name)
        return result

    def _slice(self, taken: str, stop: str, result: str, nullable: bool, name: str) -> None:
        """Assigns the bytes between p and `stop` to `result`. A length below 0 means null."""
        source = self._source
        with source.block(f"if p <= {stop} <= end:"):
            source.line(f"{result} = {taken}")
            source.line(f"p = {stop}")
        if nullable:
            source.line(f"elif {stop} < p: {result} = None")
        what = f"{name} has a length of {{{stop} - p}}, but only {{end - p}} bytes are left"
        source.line(f"else: {self._refuse(what)}")

    def _array(self, element: FieldType, nullable: bool, name: str) -> str:
        source = self._source
        count, result = source.new("n"), source.new("v")
        if self._flexible:
            self._pending.append(("B", count))
            self._flush()
            source.line(f"if {count} >= 128: {count}, p = read_long_uvarint(buffer, p, {count})")
            source.line(f"{count} -= 1")
        else:
            self._pending.append(("i", count))
            self._flush()
        least = self._least_size(element)
        most = "end - p" if least == 1 else f"(end - p) // {least}"
        with source.block(f"if 0 <= {count} <= {most}:"):
            self._count_elements(count)
            self._elements(element, count, result, name)
        if nullable:
            source.line(f"elif {count} < 0: {result} = None")
        what = f"{name} has {{{count}}} elements, but only {{end - p}} bytes are left"
        source.line(f"else: {self._refuse(what)}")
        return result

    def _elements(self, element: FieldType, count: str, result: str, name: str) -> None:
        source = self._source
        if isinstance(element, str) and element not in _BLOBS and element != "uuid":
            letter = FIXED_SIZE_FORMATS[element]
            readers = f"readers_{letter.replace('?', 't')}"
            if readers not in source.names:
                source.names[readers] = primitives.array_readers(letter)
            short = f"{readers}[{count}](buffer, p)"
            long = f'unpack_from(f">{{{count}}}{letter}", buffer, p)'
            source.line(f"{result} = list({short} if {count} < {primitives.SMALL_ARRAY} else {long})")
            source.line(f"p += {count} * {FIXED_SIZE_BYTES[element]}")
            return
        source.line(f"{result} = []")
        with source.block(f"for _ in range({count}):"):
            value = self._value(element, False, name)
            self._flush()
            source.line(f"{result}.append({value})")
            if self._in_steps:
                source.line("yield")

    def _least_size(self, kind: FieldType) -> int:
        """Returns the fewest bytes that one value takes. They bound the length of an array before memory is
        allocated for it.
        """
        if isinstance(kind, tuple):
            return 1 if self._flexible else 4
        if isinstance(kind, str):
            if kind in _BLOBS:
                return 1 if self._flexible else (2 if kind == "string" else 4)
            return FIXED_SIZE_BYTES[kind]
        size = 1 if self._flexible else 0
        for field in kind.FIELDS:
            if field.is_in(self._version) and not field.is_tagged_in(self._version):
                is_struct = not isinstance(field.kind, (str, tuple))
                size += (
                    1 if is_struct and field.is_nullable_in(self._version) else self._least_size(field.kind)
                )
        return max(size, 1)


def _has_views(kind: type[Struct]) -> bool:
    """Returns whether any value, at any depth, is a view into the buffer."""
    for field in kind.FIELDS:
        inner = field.kind[0] if isinstance(field.kind, tuple) else field.kind
        if inner in ("bytes", "records") or (not isinstance(inner, str) and _has_views(inner)):
            return True
    return False
