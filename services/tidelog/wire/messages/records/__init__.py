"""Records of internal topics and of consumer protocols. Made by tools/codec/generate.py from Apache Kafka 4.3.1's definitions; not edited by hand."""
