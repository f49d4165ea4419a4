"""JSON, and the wire's names: the only place where camelCase meets snake_case.

One noun a module.
"""

from toril.protocol.codec.compensation import (
    CompensationPayload,
    decode_compensation,
    encode_compensation,
    encode_compensations,
)
from toril.protocol.codec.fields import (
    MOST,
    name,
    number,
    number_in,
    reason,
    text,
    text_or_none,
    words_of,
)
from toril.protocol.codec.models import read_model, write_model
from toril.protocol.codec.payload import decode, decode_or_text, encode, encode_limited, plain
from toril.protocol.codec.stored_options import (
    UNSET,
    JobGroup,
    JobOpts,
    Unset,
    decode_options,
    decode_options_of_before,
)
from toril.protocol.codec.written_options import (
    PLAIN_OPTIONS,
    children_of,
    encode_options,
    encode_options_of_member,
    encode_parent,
    encode_wire_options,
    keep_args,
    python_names,
    wire_options,
    with_children,
)

__all__ = [
    "MOST",
    "PLAIN_OPTIONS",
    "UNSET",
    "CompensationPayload",
    "JobGroup",
    "JobOpts",
    "Unset",
    "children_of",
    "decode",
    "decode_compensation",
    "decode_options",
    "decode_options_of_before",
    "decode_or_text",
    "encode",
    "encode_compensation",
    "encode_compensations",
    "encode_limited",
    "encode_options",
    "encode_options_of_member",
    "encode_parent",
    "encode_wire_options",
    "keep_args",
    "name",
    "number",
    "number_in",
    "plain",
    "python_names",
    "read_model",
    "reason",
    "text",
    "text_or_none",
    "wire_options",
    "with_children",
    "words_of",
    "write_model",
]
