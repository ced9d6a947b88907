"""The kernel, on which every part of tidelog builds. It imports no other part."""
