-- For the whole scripts, as `coordinator.scripts.write` puts them together.
std = "lua51"
read_globals = { "redis", "cjson", "KEYS", "ARGV" }
max_line_length = 120
