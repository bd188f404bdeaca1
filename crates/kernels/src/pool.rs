//! Worker threads for parallel loops: they spin for a moment after each loop, then park.
//!
//! A decode step is some hundred short parallel loops a few microseconds apart; waking a parked
//! thread for each would cost more than the loop itself. So a worker polls for the next loop for
//! about 100 µs before it parks, and an idle process uses no CPU time. The calling thread works
//! too, and never waits for a worker that has not joined the loop.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Most threads of a pool. More than any machine has cores; a system may fail to start more.
pub const MAX_THREADS: usize = 1024;

/// How long an idle worker polls for the next loop before it parks.
const SPIN: Duration = Duration::from_micros(100);

/// Body of a parallel loop, called with the task index. It borrows from the caller; [`Team::open`]
/// says why `'static` is sound.
type LoopBody = &'static (dyn Fn(usize) + Sync);

/// `gate` packs `epoch << 32 | open << 31 | joined`. A worker joins by one compare-and-swap that
/// succeeds only while the loop of that epoch is open, so the caller may return as soon as the loop
/// is closed and no worker is joined.
const OPEN: u64 = 1 << 31;
const JOINED: u64 = OPEN - 1;

struct State {
    gate: AtomicU64,
    body: Mutex<Option<LoopBody>>,
    next: AtomicUsize,
    tasks: AtomicUsize,
    /// Number of workers that may join the loop.
    max_joined: AtomicU64,
    quit: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

struct Worker {
    thread: Thread,
    parked: Arc<AtomicBool>,
    handle: Option<JoinHandle<()>>,
}

/// How often this process was forked; see [`Pool::after_fork`].
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Worker threads and the state that they share with the calling thread.
struct Team {
    state: Arc<State>,
    workers: Vec<Worker>,
    /// Value of [`FORKS`] when the workers were started.
    forks: u32,
}

/// A pool of threads that run parallel loops.
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// let sum = AtomicUsize::new(0);
/// pellucid_kernels::Pool::new(2).run(100, &|task| { sum.fetch_add(task, Ordering::Relaxed); });
/// assert_eq!(sum.into_inner(), 4950);
/// ```
pub struct Pool {
    threads: usize,
    /// Locked during a loop. A second caller that finds it locked runs its loop alone: waiting or
    /// oversubscribing would be slower.
    team: Arc<Mutex<Team>>,
}

impl Pool {
    /// Creates a pool of `threads` threads, including the caller; at most [`MAX_THREADS`].
    pub fn new(threads: usize) -> Pool {
        let team = Team::start(threads);
        Pool { threads: team.workers.len() + 1, team: Arc::new(Mutex::new(team)) }
    }

    /// Returns a pool that shares these threads but uses at most `threads` of them, including the
    /// caller.
    pub fn at_most(&self, threads: usize) -> Pool {
        Pool { threads: self.threads.min(threads).max(1), team: self.team.clone() }
    }

    /// Must be called in the child after a fork: threads are not inherited, so every pool restarts
    /// its workers at its next loop.
    pub fn after_fork() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the process-wide pool, which is the default everywhere: `PELLUCID_THREADS`,
    /// `RAYON_NUM_THREADS` or `OMP_NUM_THREADS` threads, else one per core.
    pub fn global() -> Arc<Pool> {
        static GLOBAL: OnceLock<Arc<Pool>> = OnceLock::new();
        GLOBAL.get_or_init(|| Arc::new(Pool::new(default_threads()))).clone()
    }

    /// Returns a pool of `threads` threads: part of the global pool if that is large enough, else a
    /// new one. Models that share the global pool do not oversubscribe the machine.
    pub fn with_threads(threads: usize) -> Arc<Pool> {
        let global = Pool::global();
        Arc::new(if threads <= global.threads { global.at_most(threads) } else { Pool::new(threads) })
    }

    /// Number of threads, including the caller.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `body(0)` … `body(tasks - 1)`, each once, on all threads, and returns when all are
    /// done.
    ///
    /// A panic in a task is rethrown here once the other tasks have finished.
    pub fn run(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        let team = if tasks > 1 && self.threads > 1 { self.team.try_lock().ok() } else { None };
        let Some(mut team) = team else {
            (0..tasks).for_each(body);
            return;
        };
        if team.forks != FORKS.load(Ordering::Relaxed) {
            *team = Team::start(team.workers.len() + 1);
        }
        team.open(tasks, self.threads - 1, body);
        let outcome = catch_unwind(AssertUnwindSafe(|| work(&team.state, body)));
        team.close();
        let worker_panic = team.state.panic.lock().ok().and_then(|mut slot| slot.take());
        // Unwinding while holding the lock would poison it.
        drop(team);
        if let Some(panic) = outcome.err().or(worker_panic) {
            resume_unwind(panic);
        }
    }
}

impl Team {
    fn start(threads: usize) -> Team {
        let state = Arc::new(State {
            gate: AtomicU64::new(0),
            body: Mutex::new(None),
            next: AtomicUsize::new(0),
            tasks: AtomicUsize::new(0),
            max_joined: AtomicU64::new(0),
            quit: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        // If a thread cannot be started, the pool is smaller; results are the same.
        let workers = (1..threads.clamp(1, MAX_THREADS)).map_while(|index| Worker::start(index, &state)).collect();
        Team { state, workers, forks: FORKS.load(Ordering::Relaxed) }
    }

    /// Opens a loop to at most `max_joined` workers.
    fn open(&self, tasks: usize, max_joined: usize, body: &(dyn Fn(usize) + Sync)) {
        // SAFETY: extends the lifetime. `close` returns only when no worker can reach `body` any
        // more, and the caller calls it before `body` goes out of scope.
        let body: LoopBody = unsafe { std::mem::transmute(body) };
        let state = &*self.state;
        *state.body.lock().unwrap_or_else(|e| e.into_inner()) = Some(body);
        state.tasks.store(tasks, Ordering::Relaxed);
        state.next.store(0, Ordering::Relaxed);
        state.max_joined.store(max_joined as u64, Ordering::Relaxed);
        let epoch = (state.gate.load(Ordering::Relaxed) >> 32) + 1;
        state.gate.store(epoch << 32 | OPEN, Ordering::SeqCst);
        for worker in self.workers.iter().take(max_joined.min(tasks - 1)) {
            if worker.parked.load(Ordering::SeqCst) {
                worker.thread.unpark();
            }
        }
    }

    fn close(&self) {
        let gate = &self.state.gate;
        gate.fetch_and(!OPEN, Ordering::AcqRel);
        let started = Instant::now();
        while gate.load(Ordering::Acquire) & JOINED != 0 {
            // A worker that was preempted holds the last task: let the scheduler run it.
            if started.elapsed() > SPIN { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.state.quit.store(true, Ordering::SeqCst);
        for worker in &mut self.workers {
            worker.thread.unpark();
            let Some(handle) = worker.handle.take() else { continue };
            if self.forks == FORKS.load(Ordering::Relaxed) {
                // Join errors are ignored: panics of tasks were already passed to their caller.
                let _ = handle.join();
            } else {
                // After a fork the thread exists only in the parent; joining or detaching its
                // handle here would touch memory that may have been reused.
                std::mem::forget(handle);
            }
        }
    }
}

impl Worker {
    fn start(index: usize, state: &Arc<State>) -> Option<Worker> {
        let (state, parked) = (state.clone(), Arc::new(AtomicBool::new(false)));
        let flag = parked.clone();
        let builder = std::thread::Builder::new().name(format!("pellucid-{index}"));
        let handle = builder.spawn(move || serve(&state, &flag)).ok()?;
        Some(Worker { thread: handle.thread().clone(), parked, handle: Some(handle) })
    }
}

/// Main loop of a worker: wait for an open loop of a new epoch, join it, work, leave.
fn serve(state: &State, parked: &AtomicBool) {
    let mut seen = 0;
    let mut idle_since = Instant::now();
    loop {
        let gate = state.gate.load(Ordering::Acquire);
        if state.quit.load(Ordering::Relaxed) {
            return;
        }
        // If enough workers have joined, wait for the next loop.
        let has_slot = gate & JOINED < state.max_joined.load(Ordering::Relaxed);
        if gate >> 32 != seen && gate & OPEN != 0 && has_slot {
            if state.gate.compare_exchange(gate, gate + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            seen = gate >> 32;
            let body = *state.body.lock().unwrap_or_else(|e| e.into_inner());
            let outcome = catch_unwind(AssertUnwindSafe(|| body.map(|body| work(state, body))));
            if let (Err(panic), Ok(mut slot)) = (outcome, state.panic.lock()) {
                *slot = Some(panic);
            }
            state.gate.fetch_sub(1, Ordering::AcqRel);
            idle_since = Instant::now();
        } else if idle_since.elapsed() < SPIN {
            (0..32).for_each(|_| std::hint::spin_loop());
        } else {
            // Set the flag, check again (a loop may have opened in between), then park until `open`
            // or `drop` unparks this thread.
            parked.store(true, Ordering::SeqCst);
            if state.gate.load(Ordering::SeqCst) == gate && !state.quit.load(Ordering::SeqCst) {
                std::thread::park();
            }
            parked.store(false, Ordering::SeqCst);
            idle_since = Instant::now();
        }
    }
}

/// Runs tasks until none is left.
fn work(state: &State, body: &(dyn Fn(usize) + Sync)) {
    let tasks = state.tasks.load(Ordering::Relaxed);
    loop {
        let task = state.next.fetch_add(1, Ordering::Relaxed);
        if task >= tasks {
            return;
        }
        body(task);
    }
}

/// Environment variable with the number of threads of the global pool.
pub const THREADS_VARIABLE: &str = "PELLUCID_THREADS";

/// Checks `PELLUCID_THREADS`: a number of threads from 1 to [`MAX_THREADS`], if it is set. The
/// variables of other libraries may have forms that mean nothing here, and are ignored then.
pub fn check_environment() -> Result<(), String> {
    match std::env::var_os(THREADS_VARIABLE) {
        Some(text) => parse_threads(&text.to_string_lossy()).map(drop),
        None => Ok(()),
    }
}

fn parse_threads(text: &str) -> Result<usize, String> {
    let count = text.trim().parse().ok().filter(|count| (1..=MAX_THREADS).contains(count));
    count.ok_or_else(|| format!("{THREADS_VARIABLE} is {text:?}; it must be a number from 1 to {MAX_THREADS}"))
}

fn default_threads() -> usize {
    [THREADS_VARIABLE, "RAYON_NUM_THREADS", "OMP_NUM_THREADS"]
        .iter()
        .find_map(|name| parse_threads(&std::env::var(name).ok()?).ok())
        .or_else(|| std::thread::available_parallelism().ok().map(|n| n.get()))
        .unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f17_thread_counts_are_bounded_and_checked() {
        assert_eq!(parse_threads(" 7 "), Ok(7));
        for wrong in ["", "abc", "-1", "0", "1025", "20000", "18446744073709551615", "99999999999999999999"] {
            assert!(parse_threads(wrong).is_err_and(|problem| problem.contains("1 to 1024")), "{wrong}");
        }
        assert!(Pool::new(usize::MAX).threads() <= MAX_THREADS);
    }

    #[test]
    fn every_task_runs_exactly_once() {
        let pool = Pool::new(3);
        for tasks in [0, 1, 2, 7, 1000] {
            let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            pool.run(tasks, &|task| {
                counts[task].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{tasks} tasks");
        }
    }

    #[test]
    fn runs_after_workers_have_parked_and_under_many_short_loops() {
        let pool = Pool::new(2);
        let total = AtomicUsize::new(0);
        for round in 0..2000 {
            pool.run(4, &|task| {
                total.fetch_add(task, Ordering::Relaxed);
            });
            if round % 500 == 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        assert_eq!(total.into_inner(), 2000 * 6);
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller_and_the_pool_survives() {
        let pool = Pool::new(2);
        let caught = catch_unwind(AssertUnwindSafe(|| pool.run(8, &|task| assert!(task != 5, "task five"))));
        assert!(caught.is_err());
        let done = AtomicUsize::new(0);
        pool.run(8, &|_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 8);
    }

    #[test]
    fn a_limited_pool_never_uses_more_threads() {
        let pool = Pool::new(4);
        let two = pool.at_most(2);
        assert_eq!((pool.threads(), two.threads(), pool.at_most(0).threads(), two.at_most(9).threads()), (4, 2, 1, 2));
        for pool in [&two, &pool.at_most(1)] {
            let (now, most, done) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
            for _ in 0..200 {
                pool.run(16, &|_| {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    done.fetch_add(1, Ordering::SeqCst);
                    std::thread::yield_now();
                    now.fetch_sub(1, Ordering::SeqCst);
                });
            }
            assert_eq!(done.into_inner(), 200 * 16);
            assert!(most.into_inner() <= pool.threads());
        }
    }

    #[test]
    fn a_pool_restarts_its_threads_after_a_fork() {
        let pool = Pool::new(2);
        let total = AtomicUsize::new(0);
        let count = |_| {
            total.fetch_add(1, Ordering::Relaxed);
        };
        pool.run(10, &count);
        let before = Arc::downgrade(&pool.team.lock().expect("no task panicked").state);
        Pool::after_fork();
        pool.run(10, &count);
        let team = pool.team.lock().expect("no task panicked");
        assert_eq!(total.into_inner(), 20);
        assert_eq!(team.forks, FORKS.load(Ordering::Relaxed));
        assert!(!before.upgrade().is_some_and(|before| Arc::ptr_eq(&before, &team.state)));
    }

    #[test]
    fn two_callers_at_once_both_finish() {
        let pool = Arc::new(Pool::new(2));
        let total = Arc::new(AtomicUsize::new(0));
        let callers: Vec<_> = (0..4)
            .map(|_| {
                let (pool, total) = (pool.clone(), total.clone());
                std::thread::spawn(move || {
                    for _ in 0..200 {
                        pool.run(5, &|_| {
                            total.fetch_add(1, Ordering::Relaxed);
                        });
                    }
                })
            })
            .collect();
        callers.into_iter().for_each(|c| c.join().expect("a caller panicked"));
        assert_eq!(total.load(Ordering::Relaxed), 4 * 200 * 5);
    }
}
