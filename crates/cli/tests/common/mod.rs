//! Running the program from a test.
#![expect(unreachable_pub, reason = "a module of several test programs")]
#![allow(dead_code, reason = "not every test program uses all of it")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

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
