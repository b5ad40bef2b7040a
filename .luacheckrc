-- For the whole scripts, as `python -m coordinator.scripts DIR` writes them.
std = "lua51"
read_globals = { "redis", "cjson", "KEYS", "ARGV" }
max_line_length = 120
