"""Parts that every process of tidelog needs: its log output and the kind of its build."""
