//! Turns stanzas, as package indexes hold them, into JSON lines for `spinney import`: the first field's value is the key, the
//! stanza's text the value. Stanzas are separated by blank lines; where two have one key, the later goes to a key of its own with `=2`, `=3` and so on.
//!
//! ```text
//! apt-cache dumpavail | cargo run --release -p spinney-cli --example stanzas_to_jsonl > packages.jsonl
//! spinney import packages.db packages.jsonl
//! spinney scan packages.db --prefix libssl --keys-only
//! ```

use std::collections::HashMap;
use std::io::{BufRead, BufWriter, Write};

fn main() -> std::io::Result<()> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut seen: HashMap<String, u64> = HashMap::new();
    let mut stanza = Vec::new();
    let mut input = std::io::stdin().lock();
    loop {
        let mut line = Vec::new();
        let ended = input.read_until(b'\n', &mut line)? == 0;
        if ended || line.trim_ascii().is_empty() {
            if !stanza.is_empty() {
                write_stanza(&mut out, &String::from_utf8_lossy(&stanza), &mut seen)?;
                stanza.clear();
            }
        } else {
            stanza.append(&mut line);
        }
        if ended {
            return out.flush();
        }
    }
}

fn write_stanza(
    out: &mut impl Write,
    stanza: &str,
    seen: &mut HashMap<String, u64>,
) -> std::io::Result<()> {
    let first = stanza.lines().next().unwrap_or_default();
    let name = first.split_once(':').map_or(first, |(_, value)| value).trim();
    let count = seen.entry(name.to_owned()).or_insert(0);
    *count += 1;
    let key = if *count == 1 { name.to_owned() } else { format!("{name}={count}") };
    writeln!(out, "{}", serde_json::json!({ "key": key, "value": stanza }))
}
