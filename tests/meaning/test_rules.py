"""Rules on two raw answers (meaning.md, section 2)."""

from __future__ import annotations

import time
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semcal.meaning.rules import compare, decide, read_classes
from semcal.text.numbers import NUMBER_WORDS

SAME = [
    # notations of one value
    ("What share of them came?", "40%", "0.4"),
    ("What is y?", "1/8", "0.125"),
    ("What is y?", r"$\frac{1}{8}$", "1/8"),
    ("What is y?", "2.5e4", "25000"),
    ("How many live there?", "3.4M", "3.4 million"),
    ("How far is it?", "7 km", "7000 m"),
    ("How far is it?", "7 km", "7 kilometres"),
    ("How long is it?", "3 hours", "180 minutes"),
    ("How long is it?", "1 hour and 30 minutes", "90 min"),
    ("How tall is he?", "5 feet 10 inches", "70 inches"),
    ("How far is it?", "about 7 miles", "7 mi"),
    ("How many live there?", "3,4 Millionen", "3.4 million"),
    ("How many?", "2 Milliarden", "2 billion"),
    ("How many?", "1.500.000", "1,500,000"),
    ("Which month?", "Sept.", "September"),
    ("How fast is the disk?", "90 MB/s", "90 megabytes per second"),
    ("When does it open?", "3 PM", "15:00"),
    ("When does it open?", "8 a.m.", "at 8 o'clock in the morning"),
    ("When is it?", "May 6th", "6 May"),
    ("When did he reign?", "1801-1807", "from 1801 until 1807"),
    ("In which century was it built?", "in the 1400s", "the 15th century"),
    ("What was the score?", "three-nil", "3-0"),
    ("What is the scale?", "1:20,000", "1 to 20,000"),
    ("How far is it?", "7.5 × 10^9 km", "7.5e9 km"),
    ("How hot is it?", "2.95 × 10^1 °C", "29.5 °C"),
    ("How large is the budget?", "$2.4 trillion", "2.4 trillion dollars"),
    ("When does it open?", "mid-May", "in the middle of May"),
    ("Which substance?", "H2O2", "hydrogen peroxide"),
    ("In which key?", "E♭ minor", "E-flat minor"),
    ("What is its derivative?", "-cos(x)", "−cos x"),
    # names
    ("Which war?", "WWII", "World War II"),
    ("Which agency?", "FAO", "Food and Agriculture Organization"),
    ("Who?", "Sir Arthur Evans", "Arthur Evans"),
    ("Who?", "Bill Harker", "William Harker"),
    ("Who?", "B. Q. Harker", "Basil Quentin Harker"),
    ("Who?", "Bill Harker", "William Basil Harker"),
    ("Who?", "Ada Velis", "Ada Maria Velis"),
    ("Who?", "Chatchenkow", "Tschatchenkov"),
    ("Where?", "Nürnberg, Deutschland", "Nuremberg, Germany"),
    ("Where?", "Bombay", "Mumbai"),
    ("Which country?", "États-Unis", "the United States"),
    # hedges, markup, citations
    ("Who?", "I think it is Arthur Evans.", "Arthur Evans"),
    ("Which city?", "**Turin**", "[Turin](https://example.org/turin)"),
    ("Which city?", '{"answer": "Turin"}', '{"city":"Turin"}'),
    ("When was it built?", "1907 [12]", "1907¹"),
    ("Which option? A) Turin B) Milan", "B) Milan", "B"),
    ("Which option?", "(C)", "C) Milan"),
    # polarity
    ("Is the lake deep, or not?", "Yes, it is deep.", "It is."),
    ("Is the lake deep?", "Yes, it is deep.", "It is."),
    ("Is the lake deep?", "No", "It is not deep."),
    ("Ist der See tief?", "Ja", "Der See ist tief."),
    ("Est-ce que le lac est profond ?", "Non", "Non, il est plat."),
    ("¿Es profundo el lago?", "Sí", "Sí, es profundo"),
    ("Is it so?", "👍", "yes"),
    # lists, roles, refusals, code
    ("Which colors?", "blue, red and green", "green, blue and red"),
    ("Who sued whom?", "Ada sued Bo.", "Bo was sued by Ada."),
    ("Who?", "I can't tell that.", "I don't know."),
    ("What is the sum?", "a+b", "`a + b`"),
    ("Which flag shows the rest?", "-i", "i"),
    # clock times, bounds, months and currencies
    ("When does it open?", "quarter past seven in the evening", "7:15 pm"),
    ("When does it close?", "a quarter to noon", "11:45 am"),
    ("When is it open?", "from 8am to 5pm", "08:00-17:00"),
    ("How long does it keep?", "no longer than a month", "up to 1 month"),
    ("How old must they be?", "at least 16", "16 or older"),
    ("When was it sold?", "04/1997", "April 1997"),
    ("How long is it?", "3 h", "three hours"),
    ("What does it cost?", "US$40", "$40.00"),
    ("What does it cost?", "£40", "40 pounds"),
    # numbers and counts
    ("Wie viele Inseln hat der See?", "dreiundzwanzig", "23"),
    ("Combien d'îles ?", "Il y a quinze îles.", "15"),
    ("¿Cuántas islas hay?", "treinta y dos", "32"),
    ("Quante isole ci sono?", "ventuno", "21"),
    ("Quantas ilhas há?", "quarenta e cinco", "45"),
    ("Hoeveel eilanden zijn er?", "zesentwintig", "26"),
    ("How many islands are in the lake?", "There are six islands in the lake.", "6"),
    ("Which article?", "Article XIV", "the 14th article"),
    # remarks, first names, acronyms
    ("Which band?", "Velis Five (1971)", "Velis Five"),
    ("Which king?", "Otto IV of Harkland", "King Otto IV"),
    ("Who?", "Ada Velis, a Norwegian chemist", "Ada Velis"),
    ("Who was it?", "Ada R. Velis", "Ada Velis"),
    ("Which lake?", "Mirna, at 410 m above the sea", "Mirna"),
    ("Is the leaf round or pointed?", "It is a round leaf.", "round"),
    ("How many may enter?", "max. 6", "at most 6"),
    ("Combien de lacs y a-t-il ?", "Il y a douze lacs.", "12 lacs"),
    ("Which color is it?", "It is green.", "green"),
    ("Hur många sjöar finns det?", "tjugotre", "23"),
    ("Who shot the film?", "Directed by Ada Velis", "Ada Velis"),
    ("Who?", "If I'm not mistaken, it was Ada Velis", "Ada Velis"),
    ("Which disease?", "COLD", "chronic obstructive lung disease"),
    ("Which agency?", "FAA", "U.S. Federal Aviation Administration"),
    ("Which part of the plant?", "seeds", "seed"),
    # markup
    ("Which colors?", "1. Blue\n2. Red", "red and blue"),
    ("Which parts?", "the upper and the lower jaw", "lower and upper"),
    ("What is the word?", r"\boxed{\text{inertia}}", "inertia"),
    ("Which formula?", "$C_2H_4$", "C2H4"),
    ("Which ion?", "NO₃⁻", "NO3^-"),
    ("Which version?", "v4.0.2", "4.0.2"),
    ("湖の名前は？", "十和田湖です", "十和田湖"),
    ("Was the bridge closed?", "No, it stayed open.", "It stayed open."),
    ("How high is it?", "1,210 m (3,970 ft)", "1,210 m"),
    ("How much milk?", "half a litre", "1/2 l"),
    ("How much milk?", "1 1/2 cups", "1.5 cups"),
    ("Can I buy it?", "sold out", "out of stock"),
    ("Who makes it?", "Velis Foods, Inc.", "Velis Foods"),
    ("Where is it described?", "Ch. 14", "chapter 14"),
    # times and dates
    ("When does it close?", "quarter past nine at night", "21:15"),
    ("When does it close?", "12 noon", "12:00"),
    ("When was it open?", "from 3 to 9 June", "3-9 June"),
    ("How long did it take?", "a year and a half", "18 months"),
    ("¿Cuándo nació?", "4/8/1907", "el 4 de agosto de 1907"),
    ("Which month?", "Jan.", "January"),
    ("What was the score?", "four to nil", "4-0"),
    # two sides of a relation
    ("Which is deeper, Mirna or Tolva?", "Mirna is deeper than Tolva", "Tolva is shallower than Mirna"),
    ("How are they related?", "Ada is Bo's mother.", "Bo was the son of Ada."),
    ("How are they related?", "Ada's pupil was Bo.", "Ada was the teacher of Bo."),
    ("Who won?", "Ada beat Bo.", "Bo lost to Ada."),
    ("Who won?", "Ada beat Bo.", "Bo was beaten by Ada."),
    ("Where is it?", "Mirna lies north of Tolva.", "Tolva lies south of Mirna."),
    ("Who ate what?", "The fox ate the goose.", "The goose was eaten by the fox."),
    # dates in words, bounds, shares, measures
    ("When was it?", "310 CE", "AD 310"),
    ("When was it?", "in the year 310 before Christ", "310 BC"),
    ("When was it built?", "at the beginning of the 17th century", "in the early 17th century"),
    ("When was it open?", "from March 1990 to May 1990", "March to May 1990"),
    ("When is it?", "on Boxing Day", "26 December"),
    ("When was it?", "fall 1911", "in autumn of 1911"),
    ("When was it?", "in May", "May"),
    ("How many rooms may it have?", "40 rooms or fewer", "at most 40 rooms"),
    ("What part of it is left?", "one quarter", "25%"),
    ("How deep is it?", "7 m deep", "seven metres"),
    ("How fast is it?", "20 metres a second", "20 m/s"),
    ("How large is it?", "7 cubic metres", "7 m³"),
    ("Wie alt ist der Turm?", "zwölf Jahre", "12 Jahre"),
    # names
    ("Which isotope is it?", "Sr-90", "strontium-90"),
    ("Who wrote it?", "Eric Blair", "George Orwell"),
    ("Who?", "President Velis", "Ada Velis"),
    ("Who wrote it?", "Velis", "Ada Velis"),
    ("Which city is called Wien by its people?", "Wien", "Vienna"),
    ("Which unit is it?", "Pa", "pascal"),
    ("Who led them?", "General de Velis", "Ada de Velis"),
    ("How many bytes are there?", "2^7", "128"),
    ("What is its mass?", "3.2 × 10^-4 kg", "3.2e-4 kg"),
    ("What is the ratio?", "fifteen to eight", "15:8"),
    ("Um wie viel Uhr?", "um acht Uhr abends", "20:00"),
    ("Quel animal est-ce ?", "un renard", "le renard"),
    ("Which root?", r"$\sqrt{3}$", "√3"),
    ("Which function?", r"\tan x", "tan(x)"),
    ("Which law is it?", "F = ma", "F = m·a"),
    ("What is the charge?", "3+", "+3"),
    ("In which quarter was it?", "Q3 2019", "the third quarter of 2019"),
    ("Where did they live?", "Elm Rd.", "Elm Road"),
    ("Which metal?", "Kalium", "potassium"),
    ("Who led them?", "Velischev", "Velischov"),
    # sentences
    ("Is the bridge stable?", "It is not stable.", "It is unstable."),
    ("Is the bridge stable?", "It is unstable.", "No"),
    ("What is in it?", "It is salt-free.", "without salt"),
    ("Who came?", "Nobody did.", "Nobody"),
    ("By what factor did it grow?", "twofold", "It doubled."),
    ("How did the price change?", "The price went up.", "It increased."),
    ("Which lake is meant?", "the upper one", "the upper lake"),
    ("Is the lake frozen?", "Already frozen", "Yes"),
    # other spellings
    ("Which ship?", "SS Ada Velis", "Steam Ship Ada Velis"),
    ("Who was it?", "Jan Velis", "John Velis"),
    ("Which substance?", "C_2H_6", "C2H6"),
]

DIFFERENT = [
    ("How long is it?", "1 hour and 30 minutes", "60 minutes"),
    ("Which bird is it?", "an owl", "the raven"),
    ("Which gas is it?", "nitrogen", "Oxygen"),
    ("Which instrument does she play?", "the violin", "the viola"),
    ("What was mined?", "iron ore", "copper ore"),
    ("Which degree?", "a bachelor's degree", "a master's degree"),
    ("How often?", "every day", "every week"),
    ("What caused it?", "viruses", "bacteria"),
    ("Which city is it?", "Turin, not Milan", "Milan"),
    ("Which city is it?", "Turin rather than Milan", "Milan"),
    ("What share of them came?", "40%", "0.5"),
    ("How far is it?", "7 km", "7 miles"),
    ("What is the dose?", "200 mg", "200 mcg"),
    ("How hot is it?", "15 °C", "15 °F"),
    ("What did it cost?", "40 dollars", "40 euros"),
    ("Where is it?", "12.5°N", "12.5°S"),
    ("When does it open?", "8 am", "8 pm"),
    ("How many are needed?", "at least 12", "at most 12"),
    ("How many are needed?", "over 12", "under 12"),
    ("Is the lake deep?", "Yes", "It is not deep."),
    ("Is the lake deep?", "It does.", "It does not."),
    ("Ist der See tief?", "Ja", "Nein, er ist flach."),
    ("What was it?", "guilty", "not guilty"),
    ("What is it?", "reversible", "irreversible"),
    ("What is it?", "symmetric", "asymmetric"),
    ("What is it?", "carbon monoxide", "carbon dioxide"),
    ("Where?", "North Ossetia", "South Ossetia"),
    ("Where?", "Sudan", "South Sudan"),
    ("Where?", "Niger", "Nigeria"),
    ("Who?", "Jacob Grimm", "Wilhelm Grimm"),
    ("Who?", "Pliny the Elder", "Pliny the Younger"),
    ("Which street?", "Mill Street", "Mill Road"),
    ("How many are given?", "4.16 x 10^2", "4.1 x 10^2"),
    ("How long is the race?", "4x100 m", "4x1000 m"),
    ("Who holds the office?", "mayor", "major"),
    ("Is the lake deep, or not?", "Yes, it is deep.", "The lake is not deep."),
    ("What is its derivative?", "cos x", "-cos x"),
    ("In which key?", "E minor", "E flat minor"),
    ("In which century was it built?", "in the 1400s", "the 14th century"),
    ("Which station?", "KQX", "KQV"),
    ("Who?", "Arthur Evans", "one of Arthur Evans' pupils"),
    ("Where?", "Nordkorea", "Corée du Sud"),
    ("Who?", "George W. Bush", "George H. W. Bush"),
    ("Who?", "Arthur Evans", "Arthur Evans's brother"),
    ("Who sued whom?", "Ada sued Bo.", "Bo sued Ada."),
    ("Who sued whom?", "Ada sued Bo.", "Ada was sued by Bo."),
    ("Which is longer?", "The Po is longer than the Adige", "The Adige is longer than the Po"),
    ("Who?", "It was Ada", "It was not Ada"),
    ("Which colors?", "blue, red and green", "blue, red and white"),
    ("Who founded it?", "Ada and Bo", "Ada"),
    ("What is the sum?", "a + b", "a - b"),
    ("What is the name?", "foo_bar", "foobar"),
    ("What is the limit?", "e^3 - 1", "e^3 + 1"),
    ("Which unit?", "mW", "MW"),
    ("Which symbol?", "CO", "Co"),
    ("Which code is printed on it?", "x_7", "X_7"),
    ("Which emoji?", "😀", "😢"),
    ("Which option? A) Turin B) Milan", "B", "A) Turin"),
    ("When does it open?", "quarter past seven", "quarter to seven"),
    ("When is it open?", "8am-5pm", "8am-6pm"),
    ("Is the tide rising or falling?", "It is falling.", "rising"),
    ("Is the lamp dim or bright?", "dim", "bright"),
    ("Where is the museum?", "Vienna", "Austria"),
    ("Which gas?", "NO2", "NO"),
    ("Who may enter?", "non-members", "members"),
    ("What does it do?", "It speeds up the reaction.", "It slows down the reaction."),
    ("How are they related?", "Ada is Bo's aunt.", "Bo is Ada's aunt."),
    ("Which kind of bond?", "an ionic bond", "Covalent"),
    ("What may he eat?", "everything but fish", "fish"),
    ("湖の名前は？", "十和田湖", "琵琶湖"),
    ("Which is deeper, Mirna or Tolva?", "Mirna is deeper than Tolva", "Tolva"),
    ("Which is deeper, Mirna or Tolva?", "Mirna is deeper than Tolva", "Tolva is deeper than Mirna"),
    ("Which command lists them?", "foo list --all", "foo show --all"),
    ("How is it given?", "orally", "intravenously"),
    ("Which method is it?", "openFile()", "closeFile()"),
    ("Which gene is it?", "ABC", "ABC2"),
    ("Which film is it?", "The Mill", "The Mill Part II"),
    ("Which fruit is it?", "a plum", "a fruit"),
    ("When must it be paid?", "within 14 days", "after 14 days"),
    ("Which keyword is it?", "`ORDER BY`", "GROUP BY"),
    ("어느 도시입니까?", "대전", "광주"),
    ("Πού;", "Πάτρα", "Λάρισα"),
    ("How are they related?", "Ada is Bo's mother.", "Ada is Bo's daughter."),
    ("How are they related?", "Ada is the aunt of Bo.", "Bo is the aunt of Ada."),
    ("Who won?", "Bo lost to Ada.", "Ada lost to Bo."),
    ("Who won?", "Ada was beaten by Bo.", "Bo was beaten by Ada."),
    ("Which flag is it?", "-q", "-Q"),
    ("How fast is it?", "O(n)", "O(n^2)"),
    ("What did they want?", "a harbor", "a report on a harbor"),
    ("Which fish is it?", "a trout", "a salmon"),
    ("Which emperor was it?", "Trajan", "Hadrian"),
    ("Which ending has the file?", ".rs", ".rst"),
    ("Which chip is it?", "the GPU", "the CPU"),
    ("What was lost?", "a violin", "a violin's bow"),
    ("What kind of lake is it?", "a lake", "a salt lake"),
    ("Which ion is it?", "Br-", "Br2"),
    ("Which function is it?", "sin x", "cos x"),
    ("When did it end?", "1990", "in May 1990"),
    ("Which king was it?", "Otto I", "Hugo I"),
    ("Where is the key?", "under the bench", "in the bench"),
    ("Which state is it?", "Papua New Guinea", "Guinea"),
    ("Why was there no light?", "The lamp was lit.", "The lamp was not lit."),
    ("Which school?", "Ohio University", "Ohio State University"),
    ("Which acid is it?", "nitric acid", "nitrous acid"),
    ("Which detective is it?", "Mr. Velis", "Dr. Lenz"),
    ("What was found?", "a violin", "the case of a violin"),
    ("Where is the house?", "Turin", "a hamlet near Turin"),
    ("What was taken?", "two clocks and a ring", "two rings and a clock"),
    ("What did he do?", "He answered without delay.", "He did not answer."),
    ("What is the rule?", "Dogs are allowed.", "Dogs are forbidden."),
    ("Which doctor is it?", "a doctor", "a neurologist"),
    ("Which type is it?", "float", "float[]"),
    ("Which type is it?", "Set[int]", "Set[str]"),
    ("Where is it stored?", "~/.mirna/log", "~/mirna/log"),
    ("What is the solution?", "a = 4", "b = 4"),
    ("In which order do they bloom?", "rose, lily, aster", "lily, rose, aster"),
    ("When was it?", "4/8/1907", "4 April 1907"),
    ("When does it open?", "9:30", "10 pm"),
]

UNDECIDED = [
    ("What is his real name?", "Eric Blair", "George Orwell"),
    ("What did she draw?", "a violin", "a drawing of a violin"),
    ("Which lake is meant?", "the upper one", "the lower river"),
    ("Who?", "Ada Velis", "Bo Lenz"),
    ("Who?", "Joan Harker", "John Harker"),
    ("Who won the election?", "Liberal Party", "Liberal Democratic Party"),
    ("Who followed him?", "John Adams", "John Quincy Adams"),
    ("What is the German name of the city?", "Wien", "Vienna"),
    ("Which organization is it?", "NATO", "OTAN"),
    ("Where is it?", "Paris", "Paris, Île-de-France, France"),
    ("How much is it?", "50K", "$50K"),
    ("Which one? A) Oxygen B) Neon C) Nitrogen", "C", "Carbon"),
    ("How much is in it?", "5 tons", "5 tonnes"),
    ("Who?", "Lena", "Lina"),
    ("Who?", "Joan Harker", "John Basil Harker"),
    ("Where?", "Turin", "Turin, Italy"),
    ("How far is it?", "10 km", "6.2 miles"),
    ("When does it open?", "3:00", "15:30 or so"),
    ("Who?", "A. Lincoln", "B. Lincoln"),
    ("Which park?", "Burger King", "Burger"),
    ("Which sitcom?", "M*A*S*H", "MASH 4077"),
    ("Where was it?", "1891 in Turin", "Turin in 1891"),
    ("What does the function return?", "None", "0"),
    ("What is the scale?", "1/2000", "January 2000"),
    ("Which film?", "Gremlin", "Gremlins"),
    ("Which is deeper, Mirna or Tolva?", "Which is deeper, Mirna", "Mirna"),
    ("Which is deeper, Mirna or Tolva?", "Mirna is deeper than Tolva", "Tolva is flatter than Mirna"),
    ("Who?", "Ada Velis (not her sister)", "Ada Velis"),
    ("Кто это?", "Белов", "Алексей Белов"),
    ("湖の名前は？", "東京都", "東京"),
]

NAMES = st.lists(
    st.sampled_from(["Ada", "Bo", "Carla", "Dorn", "Elias", "Fenn", "Gerda", "Holt", "Ines", "Jarl", "Kato"]),
    min_size=2,
    max_size=3,
    unique=True,
).map(" ".join)
ANSWERS = st.one_of(
    NAMES,
    st.integers(2, 99999).map(str),
    st.sampled_from(
        ["5 km", "at least 7", "Yes", "no", "a + b", "blue and red", "3 PM", "50%", "ls -l", "O-"]
    ),
    st.text(max_size=40),
)
QUESTIONS = st.sampled_from(
    ["Who?", "Is it so?", "What share?", "Which code?", "Which element?", "How many?"]
)


@pytest.mark.parametrize(("question", "first", "second"), SAME)
def test_these_are_the_same(question: str, first: str, second: str) -> None:
    assert compare(question, first, second) is True


@pytest.mark.parametrize(("question", "first", "second"), DIFFERENT)
def test_these_differ(question: str, first: str, second: str) -> None:
    assert decide(question, first, second) is False


@pytest.mark.parametrize(("question", "first", "second"), UNDECIDED)
def test_the_rules_leave_these_to_a_model(question: str, first: str, second: str) -> None:
    assert compare(question, first, second) is None


@given(question=QUESTIONS, first=ANSWERS, second=ANSWERS)
def test_the_order_of_the_answers_plays_no_part(question: str, first: str, second: str) -> None:
    assert compare(question, first, second) is compare(question, second, first)
    assert decide(question, first, second) is decide(question, second, first)


@given(question=QUESTIONS, text=ANSWERS)
def test_every_answer_means_the_same_as_itself(question: str, text: str) -> None:
    assert compare(question, text, text) is True
    assert decide(question, text, text) is True


WRAPPERS = ["{}.", "The answer is {}.", "**{}**", '"{}"', "`{}`", "I think it is {}.", "Dr. {}", "{} [3]"]


@given(name=NAMES, wrapper=st.sampled_from(WRAPPERS))
def test_markup_hedges_and_titles_change_nothing(name: str, wrapper: str) -> None:
    assert decide("Who?", name, wrapper.format(name)) is True
    assert decide("Who?", name, name.upper()) is True


@given(name=NAMES)
def test_an_answer_differs_from_its_denial(name: str) -> None:
    assert decide("Who was it?", f"It was {name}.", f"It was not {name}.") is False
    assert decide("Who was it?", name, f"Not {name}") is False


def test_a_denied_alternative_does_not_deny_the_answer() -> None:
    assert compare("Who was it?", "Ada, not Bo", "Ada") is True
    assert compare("Who was it?", "Not Bo but Ada", "Ada") is True


MEMBERS = [
    (members, a, b)
    for questions, members in read_classes()
    for a, b in combinations(range(len(members)), 2)
    if questions[0] != "is it true"
]


@given(st.sampled_from(MEMBERS), st.sampled_from(["{}", "It is the {}.", "I think it was {}"]))
def test_members_of_a_class_differ(member: tuple[list[list[str]], int, int], form: str) -> None:
    members, a, b = member
    for first, second in product(members[a], members[b]):
        verdict = compare("Which one is it?", form.format(first), form.format(second))
        x, y = set(first.split()), set(second.split())
        if x <= y or y <= x or (x | y) & NUMBER_WORDS:  # "wine" and "red wine" are left to the model
            assert not verdict
        else:
            assert verdict is False, (first, second)


def test_names_of_one_member_are_left_to_the_model_unless_a_rule_knows_them() -> None:
    assert compare("Which animal is it?", "a puma", "a cougar") is None
    assert compare("Who was it?", "Bishop Ada Velis", "Judge Ada Velis") is not False
    assert compare("Who was it?", "the painter Ada Velis", "the singer Ada Velis") is not False


def test_a_number_that_was_cut_is_no_value() -> None:
    assert decide("When?", "May 190", "May 1905") is False
    assert decide("When?", "May 190", "May 1905", cut=(True, False)) is None


def test_the_empty_answer_differs_from_any_other() -> None:
    assert decide("Who?", "", "Ada") is False
    assert decide("Who?", " ", "") is True


@pytest.mark.parametrize(
    "sign", ["*", "`", "_", "<a>", "[a](", "1,", "a. ", "not ", "' ", "is it ", "-", "{", "1 m "]
)
def test_long_and_hostile_answers_are_read_at_once(sign: str) -> None:
    text = sign * (10_000 // len(sign))
    started = time.process_time()
    compare(text, text, text[:-1])
    compare("Who?", text[:399], f"b{text[:200]}")
    assert time.process_time() - started < 2


def test_of_long_answers_only_the_polarity_is_read() -> None:
    reasons = "because of one thing or another, " * 20
    assert compare("Is it so?", f"Yes, {reasons}", f"No, {reasons}") is False
    assert compare("Who?", f"Ada, {reasons}", f"Not Ada, {reasons}") is None
