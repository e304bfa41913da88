//! Lines of a table: a number of each store, the ratios of `iot` to the others, and the paper's.

use std::io::Write;

use spinney_base::Result;

use super::plan::StoreName;
use crate::paper::{draw, say};

/// A line.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// What was measured.
    pub(super) names: Vec<String>,
    /// A number of each store; `None` where there is none.
    pub(super) numbers: Vec<Option<f64>>,
    /// The paper's ratio, in words.
    pub(super) paper: &'static str,
}

/// A table.
pub(super) struct Lines<'a> {
    pub(super) title: &'a str,
    /// Header of the names.
    pub(super) names: &'a [&'a str],
    pub(super) stores: &'a [StoreName],
    pub(super) digits: usize,
    pub(super) lines: Vec<Line>,
}

/// Returns a number with this many digits, `-` for none.
pub(super) fn number(number: Option<f64>, digits: usize) -> String {
    number.filter(|it| it.is_finite()).map_or("-".to_owned(), |it| format!("{it:.digits$}"))
}

/// Returns a ratio; none of nothing.
pub(super) fn ratio(of: Option<f64>, to: Option<f64>) -> Option<f64> {
    Some(of? / to.filter(|to| *to > 0.0)?)
}

impl Lines<'_> {
    /// Prints the table.
    pub(super) fn print(&self, out: &mut dyn Write) -> Result<()> {
        let own = self.stores.iter().position(|store| *store == StoreName::Iot);
        let others = || (0..self.stores.len()).filter(|at| own.is_some_and(|own| own != *at));
        let has_paper = self.lines.iter().any(|line| !line.paper.is_empty());
        let mut header: Vec<String> = self.names.iter().map(ToString::to_string).collect();
        header.extend(self.stores.iter().map(ToString::to_string));
        header.extend(others().map(|at| format!("x {}", self.stores[at])));
        header.extend(has_paper.then(|| "paper".to_owned()));
        let rows = self.lines.iter().map(|line| {
            let mut cells = line.names.clone();
            cells.extend(line.numbers.iter().map(|it| number(*it, self.digits)));
            let of = |at: usize| line.numbers.get(at).copied().flatten();
            cells.extend(others().map(|at| number(ratio(own.and_then(of), of(at)), 2)));
            let paper = if line.paper.is_empty() { "-" } else { line.paper };
            cells.extend(has_paper.then(|| paper.to_owned()));
            cells
        });
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        say(out, &format!("\n{}", self.title))?;
        say(out, &draw(&header, self.names.len(), rows.collect()))
    }
}

/// Prints how a profiler is attached to this process while it measures.
pub(super) fn say_profiler(out: &mut dyn Write, what: &str, seconds: [f64; 2]) -> Result<()> {
    let (process, whole) = (std::process::id(), (seconds[0] + seconds[1]).ceil());
    say(out, &format!("{what}: perf record -F 999 -g -p {process} -- sleep {whole}"))?;
    // It is of use only before the measurement ends.
    out.flush().map_err(|error| spinney_base::Error::io("write the results", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_iot_to_each_other() {
        let line = |numbers| Line { names: vec!["w".to_owned()], numbers, paper: "3" };
        let stores = [StoreName::Iot, StoreName::Row, StoreName::Column];
        let print = |stores, lines| {
            let mut out = Vec::new();
            Lines { title: "t", names: &["work"], stores, digits: 1, lines }
                .print(&mut out)
                .unwrap();
            String::from_utf8(out).unwrap()
        };
        let text = print(&stores, vec![line(vec![Some(3.0), Some(2.0), Some(0.0)])]);
        let cells = |row: usize| -> Vec<String> {
            let row = text.lines().nth(row).unwrap();
            row.split('|').map(|cell| cell.trim().to_owned()).filter(|it| !it.is_empty()).collect()
        };
        assert_eq!(cells(2), ["work", "iot", "row", "column", "x row", "x column", "paper"]);
        assert_eq!(cells(4), ["w", "3.0", "2.0", "0.0", "1.50", "-", "3"]);
        let text = print(&stores[1..], vec![line(vec![None, Some(1.0)])]);
        assert!(!text.contains("x column") && text.contains(" - "), "{text}");
    }
}
