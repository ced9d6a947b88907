"""One module for each API. Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand."""
