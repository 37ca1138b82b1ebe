//! How latency and CPU time grow with ranks and with width.

use crate::Row;
use crate::case::{Case, Path, What};
use rankpact_benches::{Failure, Plot, Results, Sample, Table};

/// What is looked at: name of a file, of an axis, and where the number is, in microseconds.
type Measure = (&'static str, &'static str, fn(&Sample) -> f64);

const MEASURES: [Measure; 3] = [
    ("p50", "median of the worst rank, us", |sample| {
        f64::from(sample.worst.p50) / 1e3
    }),
    ("wall", "wall time of a round, us", |sample| {
        sample.wall_ns / 1e3
    }),
    ("cpu", "CPU time of a round, all ranks, us", |sample| {
        sample.cpu_ns / 1e3
    }),
];

const RANKS: [usize; 6] = [2, 4, 8, 16, 32, 64];

fn find(rows: &[Row], ranks: usize, pinned: bool, case: Case) -> Option<&Sample> {
    let found = rows
        .iter()
        .find(|row| row.setting.ranks == ranks && row.setting.pinned == pinned && row.case == case);
    found.map(|row| &row.sample)
}

/// A table and three plots against ranks, three plots against width.
pub(crate) fn show(results: &mut Results, rows: &[Row]) -> Result<(), Failure> {
    let min = |path, width| Case::new(path, What::Min, width);
    let by_ranks = [
        ("table, 8 slots, pinned", min(Path::Table, 8), true),
        ("table, 8 slots", min(Path::Table, 8), false),
        ("table, 1024 slots, pinned", min(Path::Table, 1024), true),
        ("TCP, 8 slots, pinned", min(Path::Tcp, 8), true),
        ("TCP, 1024 slots, pinned", min(Path::Tcp, 1024), true),
    ];
    let header = ["what", "ranks", "lines read", "p50 us", "wall us", "CPU us"];
    let mut table = Table::new(1, header);
    for (name, case, pinned) in by_ranks {
        for ranks in RANKS {
            let Some(sample) = find(rows, ranks, pinned, case) else {
                continue;
            };
            let lines = if case.width == 8 && case.path == Path::Table {
                (ranks * (ranks - 1)).to_string()
            } else {
                String::new()
            };
            let cells = MEASURES.map(|(.., of)| format!("{:.2}", of(sample)));
            table.row(
                [name.to_owned(), ranks.to_string(), lines]
                    .into_iter()
                    .chain(cells),
            );
        }
    }
    results.table("Growth with ranks, minimum, back to back; lines are those that all ranks read if all read all.", &table);
    for (file, axis, of) in MEASURES {
        let lines = by_ranks.iter().map(|(name, case, pinned)| {
            let point =
                |ranks: &usize| Some((*ranks as f64, of(find(rows, *ranks, *pinned, *case)?)));
            ((*name).to_owned(), RANKS.iter().filter_map(point).collect())
        });
        let plot = Plot {
            title: "Minimum over ranks".to_owned(),
            axes: ["ranks", axis],
            lines: lines.collect(),
        };
        results.plot(&format!("ranks-{file}"), &plot)?;
        let of_width = [
            (2, Path::Table),
            (8, Path::Table),
            (64, Path::Table),
            (2, Path::Tcp),
            (8, Path::Tcp),
        ];
        let lines = of_width.map(|(ranks, path)| {
            let points = rows.iter().filter(|row| {
                let same = row.case == min(path, row.case.width);
                same && row.setting.ranks == ranks && row.setting.pinned
            });
            let points = points.map(|row| (row.case.width as f64, of(&row.sample)));
            (format!("{path:?}, {ranks} ranks, pinned"), points.collect())
        });
        let plot = Plot {
            title: "Minimum over slots".to_owned(),
            axes: ["slots", axis],
            lines: lines.into(),
        };
        results.plot(&format!("width-{file}"), &plot)?;
    }
    Ok(())
}
