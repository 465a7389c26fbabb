"""Template and spec to batch script. Pure, but for reading the templates themselves."""
