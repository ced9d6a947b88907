"""One broker, its log and its clients, for tests and benchmarks: real processes, brokers without sockets, raw
and scripted peers, models of brokers in virtual time, and strategies for messages and logs.
"""
