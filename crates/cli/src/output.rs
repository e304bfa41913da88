//! Standard output that fails when it is closed.
//!
//! When the parent has closed a standard stream, the runtime of Rust opens `/dev/null` under its
//! number, so that no other file gets it. Output there is lost without an error. So a function that
//! the loader calls before the runtime starts checks standard output first.
#![expect(unsafe_code, reason = "the loader calls a function before `main`")]

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

extern "C" fn look() {
    let closed = rustix::io::fcntl_getfd(rustix::stdio::stdout()) == Err(rustix::io::Errno::BADF);
    WAS_CLOSED.store(closed, Relaxed);
}

// SAFETY: the loader calls each function of this section once, with arguments that ours may ignore. It
// makes one system call and stores to an atomic, and needs nothing of the runtime.
#[unsafe(link_section = ".init_array")]
#[used]
static LOOK: extern "C" fn() = look;

/// Returns standard output, buffered by lines.
pub(crate) fn stdout() -> Output {
    Output(std::io::stdout().lock())
}

/// See [`stdout`].
pub(crate) struct Output(std::io::StdoutLock<'static>);

impl Output {
    fn check() -> std::io::Result<()> {
        match WAS_CLOSED.load(Relaxed) {
            true => Err(rustix::io::Errno::BADF.into()),
            false => Ok(()),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Output::check()?;
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}
