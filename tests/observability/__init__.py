"""A package, because pytest ends a fixture of scope `package` after its tests only where there is one."""
