"""The commands of `lcrag`; `table` lists them, `lcrag.main` runs one."""
