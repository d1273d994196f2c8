//! What every rank has after each of its steps, as libnbc's documentation draws it.

use super::{Fault, run};
use crate::schedule::{Collective, Rank, Schedule};

/// One line per step, one column per rank; in it chunk by chunk the ranks whose contributions it holds, `[]` around them when it
/// is finished, `-` for nothing yet; scratch after a bar. Steps of a rank that only send leave it as it is.
pub fn table(goal: Collective, world: u32, build: impl Fn(Rank) -> Schedule) -> Result<String, Fault> {
    let schedules: Vec<Schedule> = (0..world).map(build).collect();
    let machine = run(goal, &schedules, true)?;
    let history = machine.history.as_ref().expect("asked for");
    let chunks = schedules[0].chunks as usize;
    let cell = |value: &Option<u32>| value.map_or("-".to_owned(), |value| machine.expressions.text(value));
    let state = |cells: &Vec<Option<u32>>| {
        let (data, scratch) = cells.split_at(chunks);
        let bar = (!scratch.is_empty()).then(|| "|".to_owned());
        data.iter().map(cell).chain(bar).chain(scratch.iter().map(cell)).collect::<Vec<_>>()
    };
    let columns: Vec<Vec<String>> =
        history.iter().map(|steps| aligned(&steps.iter().map(state).collect::<Vec<_>>())).collect();
    let mut lines = vec![String::from("step ")];
    lines.extend((0..columns.iter().map(Vec::len).max().unwrap_or(0)).map(|step| format!("{step:>4} ")));
    for (rank, column) in columns.iter().enumerate() {
        let heading = format!("rank {rank}");
        let width = column.iter().map(String::len).max().unwrap_or(0).max(heading.len());
        lines[0] += &format!("  {heading:<width$}");
        for (step, line) in lines[1..].iter_mut().enumerate() {
            // A rank that has fewer steps keeps what it has.
            *line += &format!("  {:<width$}", column[step.min(column.len() - 1)]);
        }
    }
    Ok(lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect())
}

/// The chunks of all steps of a rank, each in a column of its own.
fn aligned(steps: &[Vec<String>]) -> Vec<String> {
    let width = |i: usize| steps.iter().map(|cells| cells[i].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..steps[0].len()).map(width).collect();
    let line = |cells: &Vec<String>| {
        cells.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect::<Vec<_>>().join(" ")
    };
    steps.iter().map(line).collect()
}
