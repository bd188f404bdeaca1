//! `pellucid-lab-worker`: runs measurements that need a counting allocator or a local hub, which
//! the product binary does not contain. Reads one JSON request from stdin and writes one JSON
//! answer to stdout; `pellucid_lab::lab_worker` lists its tasks.

#[path = "../allocator.rs"]
mod allocator;

use pellucid_lab::counting::CountingAllocator;
use pellucid_lab::identify::{self, hub_files};
use pellucid_lab::lab_worker::Task;
use pellucid_lab::worker;
use pellucid_loopback::{Hub, MODEL};
use serde::Serialize;
use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    allocator::keep_freed_memory();
    let outcome = run();
    if let Err(error) = &outcome {
        // stderr may be closed; the exit code still reports the failure.
        let _ = writeln!(std::io::stderr(), "{error}");
    }
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(2) }
}

fn run() -> Result<(), Box<dyn Error>> {
    let task = std::env::args().nth(1).as_deref().and_then(Task::from_name);
    let task = task.ok_or("this program is started by `pellucid lab` and takes its task as an argument")?;
    let request = std::io::read_to_string(std::io::stdin())?;
    match task {
        Task::CountAllocations => answer(&worker::count_allocations(&serde_json::from_str(&request)?)?),
        Task::Identify => {
            let hub = Hub::start(hub_files())?;
            let address = identify::Hub { endpoint: hub.endpoint(), model: MODEL.into() };
            answer(&identify::result::run(&serde_json::from_str(&request)?, Some(&address))?)
        }
    }
}

fn answer(found: &impl Serialize) -> Result<(), Box<dyn Error>> {
    let mut stdout = std::io::stdout().lock();
    serde_json::to_writer(&mut stdout, found)?;
    Ok(stdout.flush()?)
}
