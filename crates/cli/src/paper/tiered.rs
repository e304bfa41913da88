//! `spinney bench paper tiered`: figures of Tiered-Indexing.

use std::path::PathBuf;

use clap::Args;
use spinney_bench::distribution::Generator;
use spinney_bench::driver::Driver;
use spinney_bench::paper::tiered::{self, Figure, Tiered};

use crate::bench_engines::{self, CHILD_COMMAND};
use crate::directory::check_apart;
use crate::exit::{Failure, Outcome};
use crate::knobs::Knobs;
use crate::output::stdout;
use crate::{interrupt, sizes};

/// The option of an engine that says how many KiB its pages have.
const PAGE: &str = "page";
/// Budgets for 10M records of 128 B: about the shares of the data that the paper's are.
const BUDGETS: [u64; 3] = [256 << 20, 512 << 20, 1024 << 20];
const BUDGETS_ARE_FOR: u64 = 10_000_000 * 128;

#[derive(Debug, Args)]
pub(crate) struct TieredArguments {
    /// Tables and figures: table1, table2, fig12 to fig21 [default: all]
    figures: Vec<Figure>,
    /// Engines: the base, then those that are compared with it
    #[arg(long, value_delimiter = ',', default_value = "btree,2btree")]
    engines: Vec<String>,
    /// Number of records to load, a tenth of the paper's
    #[arg(long, default_value = "10M", value_parser = sizes::size)]
    records: u64,
    /// Bytes of key and value together
    #[arg(long, default_value = "128", value_parser = sizes::small_size)]
    record_size: usize,
    /// Bytes of a page, for engines that have the option
    #[arg(long, default_value = "16KiB", value_parser = sizes::size)]
    page: u64,
    /// Client threads
    #[arg(long, default_value_t = 4)]
    threads: usize,
    /// Seconds before each measurement
    #[arg(long, default_value_t = 60.0)]
    warmup: f64,
    /// Seconds of each measurement, and of each place of the hot set in fig17
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
    /// Exponent of the Zipf law
    #[arg(long, default_value_t = 0.9)]
    theta: f64,
    /// What draws from the Zipf law: exact, or authors for the generator of the paper, which is
    /// wrong
    #[arg(long, default_value = "exact")]
    zipf: Generator,
    /// Memory budgets [default: 256MiB, 512MiB and 1GiB for 10M records of 128 B, and as large a
    /// share of other data]
    #[arg(long, value_delimiter = ',', value_parser = sizes::size)]
    memory: Vec<u64>,
    /// Existing directory for databases, which are removed at the end, also after an interrupt
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Seed of keys and random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl TieredArguments {
    fn budgets(&self) -> Vec<u64> {
        if !self.memory.is_empty() {
            return self.memory.clone();
        }
        let data = u128::from(self.records) * self.record_size as u128;
        let share = |budget: u64| {
            let bytes = u128::from(budget) * data / u128::from(BUDGETS_ARE_FOR);
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        BUDGETS.map(share).to_vec()
    }
}

/// Checks that the engines are there, and that they take their options.
fn check_engines(
    arguments: &TieredArguments,
    knobs: &mut Knobs,
    drivers: &[Box<dyn Driver>],
) -> Result<(), Failure> {
    let figures = &arguments.figures;
    let wants_exclusive = figures.is_empty() || figures.contains(&Figure::Fig21);
    for (place, engine) in arguments.engines.iter().enumerate() {
        let Some(driver) = drivers.iter().find(|driver| driver.name() == engine) else {
            let names: Vec<&str> = drivers.iter().map(|driver| driver.name()).collect();
            let names = names.join(", ");
            return Err(Failure::usage(format!(
                "the figures compare {}, and this program has no {engine}: --engines names others of {names}",
                arguments.engines.join(" and ")
            )));
        };
        if arguments.engines[..place].contains(engine) {
            return Err(Failure::usage(format!("engine {engine:?} is named twice")));
        }
        let own = knobs.entry(engine.clone()).or_default();
        let page = [(PAGE.to_owned(), (arguments.page >> 10).to_string())];
        if !own.contains_key(PAGE) && driver.check_knobs(&page.clone().into()).is_ok() {
            own.extend(page);
        }
        driver.check_knobs(own).map_err(|error| error.context(format!("--{engine}")))?;
        if wants_exclusive && place + 1 == arguments.engines.len() {
            let (option, value) = tiered::exclusive_promotion();
            let exclusive = [(option.to_owned(), value.to_owned())].into();
            driver.check_knobs(&exclusive).map_err(|error| {
                error.context(format!("fig21 sets --{engine}.{option} {value}"))
            })?;
        }
    }
    match knobs.keys().find(|engine| !arguments.engines.contains(engine)) {
        Some(engine) => Err(Failure::usage(format!(
            "an option --{engine}.… is given, but {engine:?} is not among the engines"
        ))),
        None => Ok(()),
    }
}

pub(super) fn run(arguments: TieredArguments, mut knobs: Knobs) -> Result<Outcome, Failure> {
    check_apart(&arguments.dir)?;
    check_engines(&arguments, &mut knobs, &bench_engines::drivers())?;
    let how = Tiered {
        budgets: arguments.budgets(),
        engines: arguments.engines,
        records: arguments.records,
        record_size: arguments.record_size,
        threads: arguments.threads,
        seconds: [arguments.warmup, arguments.seconds],
        theta: arguments.theta,
        zipf: arguments.zipf,
        page: arguments.page,
        seed: arguments.seed,
        knobs,
        directory: arguments.dir,
        child_arguments: vec![CHILD_COMMAND.to_owned()],
        interrupted: interrupt::is_set,
    };
    bench_engines::outcome(tiered::run(&how, &arguments.figures, &mut stdout()))
}
