//! Ctrl-C and SIGTERM: a long command ends its work, prints how far it came, and exits with 130
//! (143 for SIGTERM). A second signal kills it at once, which does not harm a database.
//!
//! Commands that do not call [`watch`] end at the first signal, as any program does.

use std::cell::Cell;
use std::io::{BufRead, Read, Write};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use spinney_base::Error;

use crate::exit::Failure;

/// Signal that Linux sends for a write past the limit of a file's size.
const SIGXFSZ: i32 = 25;

const SIGINT_CODE: u8 = 130;
const SIGTERM_CODE: u8 = 143;

/// Poll interval of a reader that waits for input, for a signal that came just before it began to
/// wait.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Exit code of the signal that came; 0 for none.
fn came() -> &'static Arc<AtomicUsize> {
    static CAME: OnceLock<Arc<AtomicUsize>> = OnceLock::new();
    CAME.get_or_init(Arc::default)
}

/// Turns a write past the limit of a file's size into an error, instead of the end of the process.
pub(crate) fn survive_size_limits() {
    // If this fails, such a write ends the process, as by default.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

/// Notes the first signal from now on; the next one ends the process.
pub(crate) fn watch() -> Result<(), Failure> {
    for (signal, code) in [(SIGINT, SIGINT_CODE), (SIGTERM, SIGTERM_CODE)] {
        let watched = |result: std::io::Result<_>| {
            result.map_err(|error| Error::io("watch for signals", error))
        };
        // In this order, so that the first signal does not end the process itself.
        let again = Arc::new(AtomicBool::new(false));
        watched(signal_hook::flag::register_conditional_shutdown(
            signal,
            i32::from(code),
            again.clone(),
        ))?;
        watched(signal_hook::flag::register(signal, again))?;
        watched(signal_hook::flag::register_usize(signal, came().clone(), usize::from(code)))?;
    }
    Ok(())
}

/// Returns whether a signal came.
pub(crate) fn is_set() -> bool {
    came().load(SeqCst) != 0
}

/// Prints on standard error how far an interrupted command came.
pub(crate) fn say(how_far: impl std::fmt::Display) {
    // When standard error is closed, the exit code still says it.
    let _ = writeln!(std::io::stderr(), "interrupted: {how_far}");
}

/// Returns the exit code for the signal.
pub(crate) fn code() -> u8 {
    u8::try_from(came().load(SeqCst)).ok().filter(|code| *code != 0).unwrap_or(SIGINT_CODE)
}

/// Answer of progress functions for the database: a signal ends the operation.
pub(crate) fn go_on() -> ControlFlow<()> {
    if is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// A reader that counts its bytes, and that a signal ends, even while it waits for input.
#[derive(Debug)]
pub(crate) struct Interruptible<R> {
    inner: R,
    read: Rc<Cell<u64>>,
}

impl<R> Interruptible<R> {
    pub(crate) fn new(inner: R) -> Self {
        Interruptible { inner, read: Rc::default() }
    }

    /// Returns the counter of the bytes read.
    pub(crate) fn count(&self) -> Rc<Cell<u64>> {
        self.read.clone()
    }
}

impl<R: Read + AsFd> Read for Interruptible<R> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        loop {
            if is_set() {
                // Not `Interrupted`: readers above it would try again.
                return Err(std::io::Error::other("interrupted"));
            }
            let mut polled = [PollFd::new(&self.inner, PollFlags::IN)];
            match poll(&mut polled, Some(&LOOK)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                // What cannot be polled is ready.
                Ok(_) | Err(_) => {
                    let read = self.inner.read(buf)?;
                    self.read.set(self.read.get() + read as u64);
                    return Ok(read);
                }
            }
        }
    }
}

/// Returns a buffered reader that skips a byte-order mark before UTF-8 text.
pub(crate) fn without_mark(mut input: impl BufRead + 'static) -> Result<Box<dyn BufRead>, Failure> {
    const UTF8: [u8; 3] = [0xEF, 0xBB, 0xBF];
    let mut head = Vec::new();
    (&mut input).take(UTF8.len() as u64).read_to_end(&mut head)?;
    if head.starts_with(&[0xFF, 0xFE]) || head.starts_with(&[0xFE, 0xFF]) {
        return Err(Failure::usage("the input is UTF-16; convert it to UTF-8 first"));
    }
    let skipped = if head == UTF8 { UTF8.len() } else { 0 };
    let mut head = std::io::Cursor::new(head);
    head.set_position(skipped as u64);
    Ok(Box::new(head.chain(input)))
}
