//! Engine options of the form `--<engine>.<option> value`, taken out of the command line before it
//! is parsed.
//!
//! Only the engine knows its options, so the parser cannot list them. Each engine refuses unknown
//! ones.

use std::collections::BTreeMap;
use std::ffi::OsString;

use crate::exit::Failure;

/// Options by engine, then by name.
pub(crate) type Knobs = BTreeMap<String, BTreeMap<String, String>>;

/// Splits a command line into the part for the parser and the engine options. Only `bench` has any.
pub(crate) fn extract(
    arguments: impl Iterator<Item = OsString>,
) -> Result<(Vec<OsString>, Knobs), Failure> {
    let mut rest: Vec<OsString> = Vec::new();
    let mut knobs = Knobs::new();
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let of_bench = rest.get(1).is_some_and(|command| command == "bench");
        let Some(name) = argument.to_str().filter(|_| of_bench).and_then(knob) else {
            rest.push(argument);
            continue;
        };
        let (engine, option, value) = name;
        let value = match value {
            Some(value) => value,
            None => arguments
                .next()
                .and_then(|value| value.into_string().ok())
                .ok_or_else(|| Failure::usage(format!("--{engine}.{option} needs a value")))?,
        };
        let twice = knobs.entry(engine.clone()).or_default().insert(option.clone(), value);
        if twice.is_some() {
            return Err(Failure::usage(format!("--{engine}.{option} is given twice")));
        }
    }
    Ok((rest, knobs))
}

/// Parses `--engine.option` or `--engine.option=value`.
fn knob(argument: &str) -> Option<(String, String, Option<String>)> {
    let argument = argument.strip_prefix("--")?;
    let (name, value) = match argument.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (argument, None),
    };
    let (engine, option) = name.split_once('.')?;
    let is_name = |text: &str| {
        !text.is_empty()
            && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    (is_name(engine) && is_name(option)).then(|| (engine.to_owned(), option.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(line: &str) -> Result<(String, Knobs), Failure> {
        let (rest, knobs) = extract(line.split(' ').map(OsString::from))?;
        let rest: Vec<String> = rest.into_iter().map(|word| word.into_string().unwrap()).collect();
        Ok((rest.join(" "), knobs))
    }

    #[test]
    fn both_forms_are_taken_out() {
        let (rest, knobs) =
            split("spinney bench ycsb --treeline.page-grouping off --seed 1 --turtle.chi=8")
                .unwrap();
        assert_eq!(rest, "spinney bench ycsb --seed 1");
        assert_eq!(knobs["treeline"]["page-grouping"], "off");
        assert_eq!(knobs["turtle"]["chi"], "8");
    }

    #[test]
    fn other_commands_and_other_words_are_left_alone() {
        for line in [
            "spinney put db --a.b c",
            "spinney bench ycsb --dir a.b",
            "spinney bench ycsb --json=a.b",
        ] {
            let (rest, knobs) = split(line).unwrap();
            assert_eq!(rest, line);
            assert!(knobs.is_empty());
        }
    }

    #[test]
    fn a_missing_value_and_a_second_one_are_errors() {
        assert!(split("spinney bench ycsb --treeline.x").is_err());
        assert!(split("spinney bench ycsb --treeline.x 1 --treeline.x 2").is_err());
    }
}
