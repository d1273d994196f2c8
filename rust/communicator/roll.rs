//! Who the members of a group are. Calls and links count them by their place in the group; people know processes by their
//! number in the job, so that is what every error says.

use std::sync::Arc;

use crate::error::{Rank, ranks};

/// The members of a group, in its order.
#[derive(Clone, Debug)]
pub struct Roll {
    name: Arc<str>,
    /// By rank in the group: rank in the job.
    ranks: Arc<[Rank]>,
    is_job: bool,
}

impl Roll {
    /// All ranks of a job.
    pub fn job(size: u32) -> Roll {
        Roll { name: "world".into(), ranks: (0..size).collect(), is_job: true }
    }

    pub fn group(name: &str, ranks: Vec<Rank>) -> Roll {
        Roll { name: name.into(), ranks: ranks.into(), is_job: false }
    }

    /// Whether they are all ranks of the job.
    pub fn is_job(&self) -> bool {
        self.is_job
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Ranks in the job.
    pub fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    /// The number in the job of a rank of the group.
    pub fn of(&self, rank: Rank) -> Rank {
        self.ranks[rank as usize]
    }

    pub fn all_of(&self, ranks: &[Rank]) -> Vec<Rank> {
        ranks.iter().map(|rank| self.of(*rank)).collect()
    }

    /// "ranks 2 and 3", of ranks of the group.
    pub fn say(&self, members: &[Rank]) -> String {
        ranks(&self.all_of(members))
    }

    /// " of group 'rows[1]'": what distinguishes its calls from those of the group of all.
    pub fn of_group(&self) -> String {
        if self.is_job { String::new() } else { format!(" of group '{}'", self.name) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_speak_of_ranks_of_the_job() {
        let roll = Roll::group("odd", vec![3, 1, 7]);
        assert_eq!((roll.say(&[0, 1]), roll.say(&[2])), ("ranks 3 and 1".into(), "rank 7".into()));
        assert_eq!(roll.of_group(), " of group 'odd'");
        assert_eq!((Roll::job(3).of_group(), Roll::job(3).say(&[1])), (String::new(), "rank 1".into()));
    }
}
