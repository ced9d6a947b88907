"""Several services together: controllers in memory, and clusters of real processes, which are started, broken
and loaded, and judged by what was read. The systems of Java that use a cluster are here, too.
"""
