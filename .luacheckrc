-- The scripts run inside Redis: Lua 5.1, its own globals, and no way to define others.
std = "lua51"
read_globals = { "redis", "KEYS", "ARGV", "cjson", "cmsgpack", "bit", "struct" }
max_line_length = 110
