//! Child processes of a benchmark: this program again with a hidden subcommand. A child reads its
//! plan as one line of JSON from standard input and writes events as lines of JSON to standard
//! output; standard error is shared.
//!
//! Nothing is left behind, however a run ends: a child is killed when its parent gives up, and the
//! directory of the run is removed.

use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use spinney_base::shim::thread;
use spinney_base::{Error, ErrorKind, Result};

/// What the general allocator of a child goes by, unless the environment says otherwise. Every
/// engine has the same memory, and with the arenas that glibc gives to many threads what one of
/// them has freed is no use to the others: RocksDB took up to 567 MiB for 340, and with two 354 to
/// 393.
const ARENAS: (&str, &str) = ("MALLOC_ARENA_MAX", "2");

/// How a child exits that has told of its failure. Every other way that is no success is an end it
/// did not see coming.
const CHILD_FAILED: i32 = 1;

/// The signal of Ctrl-C, which a terminal sends to the children, too.
const SIGINT: i32 = 2;

/// How often the parent looks whether it is interrupted, while its child says nothing.
const LOOK: Duration = Duration::from_millis(100);

/// Says whether a run is to end early; asked often.
pub type Interrupted = fn() -> bool;

/// How a child has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// In order; a failure of its own was among what it said.
    InOrder,
    /// It or its parent was interrupted.
    Interrupted,
    /// Its parent has killed it, since it had heard enough.
    Killed,
    /// In another way.
    Died(ExitStatus),
}

/// The error of a run that was interrupted.
pub(crate) fn interrupted(how_far: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Cancelled, how_far.to_string())
}

/// A failure of the talk between parent and child.
pub(crate) fn misunderstood(message: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Io, message.to_string())
}

/// A directory that is removed with all it holds when dropped.
pub(crate) struct OwnDirectory {
    pub(crate) path: PathBuf,
    keep: bool,
}

impl OwnDirectory {
    pub(crate) fn create(parent: &Path, keep: bool) -> Result<Self> {
        if !parent.is_dir() {
            return Err(Error::invalid(format!(
                "--dir {}: there is no such directory",
                parent.display()
            )));
        }
        let path = parent.join(format!("spinney-bench-{}", std::process::id()));
        std::fs::create_dir(&path)
            .map_err(|error| Error::unopened(format!("create {}", path.display()), error))?;
        Ok(OwnDirectory { path, keep })
    }
}

impl Drop for OwnDirectory {
    fn drop(&mut self) {
        if !self.keep {
            // Nothing useful can be done about files that will not go; they are named after this
            // process.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// A child process that does not outlive its parent's interest.
struct OwnChild(Child);

impl OwnChild {
    fn start(arguments: &[String]) -> Result<OwnChild> {
        let program =
            std::env::current_exe().map_err(|error| Error::io("find this program", error))?;
        let arenas = std::env::var_os(ARENAS.0).unwrap_or_else(|| ARENAS.1.into());
        let child = Command::new(program)
            .args(arguments)
            .env(ARENAS.0, arenas)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Error::io("start a child process", error))?;
        Ok(OwnChild(child))
    }

    /// The lines that it says, as they come.
    fn lines(&mut self) -> Result<Receiver<std::io::Result<String>>> {
        let (send, lines) = channel();
        if let Some(stdout) = self.0.stdout.take() {
            // It ends with the child, or when nobody listens any more.
            thread::spawn("child-output", move || {
                let _ = BufReader::new(stdout).lines().try_for_each(|line| send.send(line));
            })
            .map_err(|error| Error::io("start a thread", error))?;
        }
        Ok(lines)
    }

    fn wait(&mut self) -> Result<ExitStatus> {
        self.0.wait().map_err(|error| Error::io("wait for a child process", error))
    }
}

impl Drop for OwnChild {
    fn drop(&mut self) {
        // One that has ended and was waited for is not touched.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a child with a plan, and passes each event that it reports to `hear`. A break kills it.
pub(crate) fn converse<E: DeserializeOwned>(
    arguments: &[String],
    plan: &impl Serialize,
    is_interrupted: Interrupted,
    hear: &mut dyn FnMut(E) -> Result<ControlFlow<()>>,
) -> Result<Ended> {
    let mut child = OwnChild::start(arguments)?;
    let line = serde_json::to_string(plan).map_err(misunderstood)?;
    if let Some(mut stdin) = child.0.stdin.take() {
        writeln!(stdin, "{line}")
            .map_err(|error| Error::io("write to the child process", error))?;
    }
    let lines = child.lines()?;
    loop {
        if is_interrupted() {
            return Ok(Ended::Interrupted);
        }
        let line = match lines.recv_timeout(LOOK) {
            Ok(line) => line.map_err(|error| Error::io("read from the child process", error))?,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        let heard = hear(serde_json::from_str(&line).map_err(|error| {
            misunderstood(format!("the child process said {line:?}: {error}"))
        })?)?;
        if heard.is_break() {
            // Dropping the child kills it and waits for its end.
            return Ok(Ended::Killed);
        }
    }
    let status = child.wait()?;
    if is_interrupted() || status.signal() == Some(SIGINT) {
        return Ok(Ended::Interrupted);
    }
    // A child that failed in order has said why; one that was killed could not.
    let in_order = status.success() || status.code() == Some(CHILD_FAILED);
    Ok(if in_order { Ended::InOrder } else { Ended::Died(status) })
}

/// Reads the plan, in the child.
pub(crate) fn read_plan<P: DeserializeOwned>(input: &mut dyn BufRead) -> Result<P> {
    let mut line = String::new();
    input.read_line(&mut line).map_err(|error| Error::io("read the plan", error))?;
    serde_json::from_str(&line)
        .map_err(|error| misunderstood(format!("the plan is not understood: {error}")))
}

/// Reports an event, from the child.
pub(crate) fn tell_parent(output: &mut dyn Write, event: &impl Serialize) -> Result<()> {
    let line = serde_json::to_string(event).map_err(misunderstood)?;
    writeln!(output, "{line}")
        .and_then(|()| output.flush())
        .map_err(|error| Error::io("tell the parent process", error))
}
