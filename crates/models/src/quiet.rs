//! Catches panics of other crates on damaged files without a message on stderr.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// Whether this thread is inside [`catch_quietly`].
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

static HOOK: Once = Once::new();

/// Calls a function of another crate that may panic on damaged input. The panic becomes `None` and
/// prints nothing; panics elsewhere are reported as before.
pub(crate) fn catch_quietly<T>(call: impl FnOnce() -> T) -> Option<T> {
    HOOK.call_once(|| {
        let earlier = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                earlier(panic);
            }
        }));
    });
    let outer = QUIET.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    QUIET.set(outer);
    result.ok()
}
