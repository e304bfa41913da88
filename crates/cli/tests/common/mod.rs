//! Running the program from a test.
#![expect(unreachable_pub, reason = "a module of several test programs")]
#![allow(dead_code, reason = "not every test program uses all of it")]

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// Runs the program on `arguments` with `input`.
pub fn spinney(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_spinney"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that does not read its input may end first.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

/// Runs it, expects this exit code, and returns what it printed.
pub fn expect(code: i32, arguments: &[&str], input: &[u8]) -> String {
    let output = spinney(arguments, input);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn fails(code: i32, arguments: &[&str], input: &[u8]) -> String {
    let output = spinney(arguments, input);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
    error
}

pub fn database(directory: &Path) -> String {
    directory.join("db").to_str().unwrap().to_owned()
}

/// What stdout says, with the exit code that must come.
pub fn scan(db: &str) -> String {
    expect(0, &["scan", db], b"")
}

/// Names of what is in a directory.
pub fn names(directory: impl AsRef<Path>) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Starts the program in a process group of its own.
pub fn start(arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_spinney"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap()
}

pub fn nap(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

pub fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Records as lines of JSON, from one number on.
pub fn lines(from: usize, count: usize, value_bytes: usize) -> Vec<u8> {
    let value = "v".repeat(value_bytes);
    let line = |number| format!("{{\"key\":\"k{number:07}\",\"value\":\"{value}\"}}\n");
    (from..from + count).map(line).collect::<String>().into_bytes()
}

/// Runs a line of a shell, `$0` of which is the program; its exit code and what it said on stderr.
pub fn shell(line: &str) -> (Option<i32>, String) {
    let spinney = env!("CARGO_BIN_EXE_spinney");
    let output = Command::new("bash").args(["-c", line, spinney]).output().unwrap();
    (output.status.code(), errors(&output))
}
